"""Folders: written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Dict

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import is_there


def write_folder(path: Path, files: Dict[str, bytes], *, force: bool = False) -> int:
    """Write files into a new folder and return their bytes.

    With ``force`` a folder that is there is replaced, and nothing else ever is.
    """
    if is_there(path) and not force:
        raise LotteryError(f"{path} exists, pass --force to replace it")
    if path.exists() and not path.is_dir():
        raise LotteryError(f"{path} is a file; give the name of a folder")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    old = path.with_name(f"{part.name}.old")
    try:
        part.mkdir()
        for name, content in files.items():
            (part / name).write_bytes(content)
        if path.exists():
            os.replace(path, old)
        os.replace(part, path)
    except BaseException as error:
        if os.path.lexists(old) and not path.exists():
            os.replace(old, path)
        if isinstance(error, OSError):
            raise LotteryError(f"cannot write {path}: {error.strerror}") from None
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if old.is_symlink():
            old.unlink()
        shutil.rmtree(old, ignore_errors=True)
    return sum(map(len, files.values()))
