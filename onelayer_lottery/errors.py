"""The error that users see, and how it quotes values from files."""

import reprlib
from typing import Any


class LotteryError(ValueError):
    """Something is wrong with a file or an option; shown without a traceback."""


def quote(value: Any) -> str:
    """Quote a value from a file: short, on one line, harmless to a terminal."""
    shown = reprlib.Repr()
    shown.maxstring = 120
    text = shown.repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
