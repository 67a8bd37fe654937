"""The error that users see, and how it quotes values from files."""

import reprlib
import unicodedata
from typing import Any

_LONGEST = 3000  # characters of a message
# Unicode's categories of control characters, surrogates and line separators.
_HARMFUL = ("Cc", "Cs", "Zl", "Zp")


class LotteryError(ValueError):
    """Something is wrong with a file or an option; shown without a traceback."""


def quote(value: Any) -> str:
    """Quote a value from a file: short, on one line, harmless to a terminal."""
    shown = reprlib.Repr()
    shown.maxstring = 120
    text = shown.repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def printable(message: str) -> str:
    """Escape control characters in a message, and cut it if it is very long.

    Messages quote what they take from files. This protects a terminal from those of
    other libraries, which do not.
    """
    if len(message) > _LONGEST:
        more = len(message) - _LONGEST
        message = f"{message[:_LONGEST]}... ({more:,} more characters)"
    return "".join(
        repr(c)[1:-1] if unicodedata.category(c) in _HARMFUL and c != "\n" else c
        for c in message
    )
