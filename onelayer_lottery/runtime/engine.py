"""Load a model in memory into CTranslate2, and report how it breaks down."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional

import numpy as np

from onelayer_lottery.errors import LotteryError, quote

# The smallest and largest numbers that engines take; 0 is a default. With larger ones
# CTranslate2 crashes or does not end.
_RANGES = {"threads": (0, 1024), "batch": (0, 1_000_000), "beam": (1, 1000)}


def out_of_range(name: str, value: Any) -> Optional[str]:
    """Return what to give instead of a value of threads, batch or beam, if anything."""
    least, most = _RANGES[name]
    if isinstance(value, (int, np.integer)) and least <= value <= most:
        return None
    return f"give a number from 1 to {most}"


def check_numbers(**values: Any) -> None:
    """Refuse threads, a batch or a beam that an engine cannot take."""
    for name, value in values.items():
        problem = out_of_range(name, value)
        if problem:
            raise LotteryError(f"{name} is {quote(value)}: {problem}")


def load_engine(
    kind: str, files: Dict[str, bytes], *, compute: str, threads: int
) -> Any:
    """Load the files of a model into CTranslate2's Translator, Encoder or Generator."""
    import ctranslate2

    return getattr(ctranslate2, kind)(
        "ticket",
        device="cpu",
        files=files,
        compute_type=compute,
        intra_threads=threads,
    )


@contextlib.contextmanager
def breakdowns(place: str = "") -> Iterator[None]:
    """Report in one sentence that weights which overflow have stopped the library."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise LotteryError(f"the model breaks down{place}: {quote(error)}") from None
