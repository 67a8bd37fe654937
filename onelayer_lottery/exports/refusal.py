"""What a target cannot hold: all reasons in one sentence."""

from __future__ import annotations

from typing import List

from onelayer_lottery.errors import LotteryError


def refuse(target: str, reasons: List[str]) -> None:
    """Raise if there is a reason why a target cannot hold a model."""
    if reasons:
        raise LotteryError(f"{target} cannot hold this model: {'; '.join(reasons)}")


def repeated(words: List[str]) -> bool:
    """Whether a dictionary has a symbol in two places, as an overwritten one has."""
    return len(set(words)) < len(words)
