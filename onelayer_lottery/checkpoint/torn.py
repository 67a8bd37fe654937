"""Replace a last checkpoint that a kill left unfinished: fairseq copies it in place."""

from __future__ import annotations

import logging
import shutil
import zipfile
from pathlib import Path

from onelayer_lottery.checkpoint.reading import load_checkpoint
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import whole_file

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"
UNREADABLE = "checkpoint_last.pt.torn"


def mend_last(folder: Path) -> None:
    """Replace a last checkpoint that cannot be read by the newest whole one.

    The unreadable file is kept beside it under another name. Without a whole
    checkpoint, nothing is done.
    """
    last = folder / LAST
    if not last.is_file() or _is_whole(last):
        return
    others = [path for path in folder.glob("checkpoint*.pt") if path != last]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        if _is_whole(path):
            shutil.copyfile(last, folder / UNREADABLE)
            # In one step: a kill must not leave the folder without a last checkpoint.
            with whole_file(last) as file, path.open("rb") as source:
                shutil.copyfileobj(source, file)
            logger.warning(
                "%s cannot be read: a training was killed while it was written;"
                " continuing from %s, the unreadable file is now %s",
                last,
                path.name,
                UNREADABLE,
            )
            return


def _is_whole(path: Path) -> bool:
    if zipfile.is_zipfile(path):  # its end is written last
        return True
    try:
        load_checkpoint(path)
    except LotteryError:
        return False
    return True
