"""A progress bar for a file that is read from standard input, on a terminal only."""

from __future__ import annotations

import os
import stat
import sys
import time
from typing import List

_WIDTH = 30
_PAUSE = 0.1  # seconds between updates of the bar


class Progress:
    """Shows how much of a file has been answered; silent where nobody would look."""

    def __init__(self, descriptor: int):
        self._lines = self._bytes = self._size = 0
        self._shown = 0.0
        try:
            status = os.fstat(descriptor)
        except OSError:
            return
        if stat.S_ISREG(status.st_mode) and sys.stderr and sys.stderr.isatty():
            self._size = status.st_size

    def after(self, lines: List[str]) -> None:
        """Count lines that have been answered."""
        if not self._size:
            return
        self._lines += len(lines)
        self._bytes += sum(len(line.encode()) + 1 for line in lines)
        if time.monotonic() - self._shown > _PAUSE:
            share = min(1.0, self._bytes / self._size)
            bar = "#" * round(share * _WIDTH)
            print(
                f"\r[{bar:<{_WIDTH}}] {share:4.0%} {self._lines:,} lines",
                end="",
                file=sys.stderr,
                flush=True,
            )
            self._shown = time.monotonic()

    def end(self) -> None:
        """Erase the bar."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
