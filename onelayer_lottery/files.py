"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside its place, and put it there in one step when all is well."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        if part.exists():
            part.unlink()
        raise
