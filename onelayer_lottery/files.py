"""Write files atomically, and recognise checkpoints."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator

from onelayer_lottery.errors import LotteryError

_PICKLES = (b"\2", b"\3", b"\4", b"\5")  # protocols


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary file beside ``path``, and rename it on success."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        if part.exists():
            part.unlink()
        raise


def is_there(path: Path) -> bool:
    """Whether there is a file or folder; refuse a path that cannot be one."""
    try:
        if not path.name:
            raise LotteryError(
                f"{path} has no name of its own; give the path of a file"
            )
        return path.exists()
    except OSError as error:
        raise LotteryError(f"cannot use {path}: {error.strerror}") from None


def is_checkpoint(path: os.PathLike | str) -> bool:
    """Whether a file was written by torch: a zip archive or, if old, a pickle."""
    path = Path(path)
    if not (is_there(path) and path.is_file()):
        raise LotteryError(f"{path} is not a file; give a ticket or a checkpoint")
    try:
        with path.open("rb") as file:
            start = file.read(9)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise LotteryError(f"cannot read {path}: {error.strerror}") from None
    # A safetensors file may begin with the same bytes, by the length of its header.
    length = int.from_bytes(start[:8], "little")
    if start[8:] == b"{" and 8 + length <= size:
        return False
    return start[:4] == b"PK\x03\x04" or (
        start[:1] == b"\x80" and start[1:2] in _PICKLES
    )
