"""Load a model in memory into CTranslate2, and report how it breaks down."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator

from onelayer_lottery.errors import LotteryError, quote


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
