"""Warn early, and once, about a training that learns nothing."""

from __future__ import annotations

import math
from typing import Optional, Sequence

# Above it the learning rate is too high; trainings that learned stayed below 0.017.
LARGEST_FLIP_RATE = 0.03


def word_entropy(counts: Sequence[int]) -> Optional[float]:
    """Return the loss in bits of a model that knows only the frequency of symbols."""
    total = sum(counts)
    if total <= 0:
        return None
    return -sum(n / total * math.log2(n / total) for n in counts if n > 0)


class Progress:
    """Check the loss once, after a quarter of the training, and every flip rate."""

    def __init__(self, entropy: Optional[float], max_update: int):
        self._entropy = entropy
        self._due = max(200, max_update // 4) if max_update else 2000
        self._checked = entropy is None
        self._warned_of_flips = False

    def is_due(self, num_updates: int) -> bool:
        """Whether it is time to check the loss."""
        return not self._checked and num_updates >= self._due

    def of_loss(self, loss: float, num_updates: int) -> Optional[str]:
        """Return a warning if a loss in bits is no better than word frequencies."""
        self._checked = True
        if self._entropy is None or loss < self._entropy - 0.2:
            return None
        return (
            f"after {num_updates} updates the loss is {loss:.2f} bits, and word"
            f" frequencies alone give {self._entropy:.2f}: nothing is learned. Lower"
            " --lr, lower --mask-gain, or give --mask-preset best"
        )

    def of_flips(self, rate: float, num_updates: int) -> Optional[str]:
        """Return a warning, once, if an update flips too many bits of the masks."""
        if rate < LARGEST_FLIP_RATE or self._warned_of_flips:
            return None
        self._warned_of_flips = True
        return (
            f"update {num_updates} flipped {rate:.1%} of all mask bits: the learning"
            " rate is too high for masks to settle; lower --lr"
        )
