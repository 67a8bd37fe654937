"""Notice early that a training learns nothing, and say so once."""

from __future__ import annotations

import math
from typing import Optional, Sequence

# A sign of too high a rate; 0.017 was the largest in a training that still learned.
LARGEST_FLIP_RATE = 0.03


def word_entropy(counts: Sequence[int]) -> Optional[float]:
    """Bits of a model that knows only how frequent each symbol is."""
    total = sum(counts)
    if total <= 0:
        return None
    return -sum(n / total * math.log2(n / total) for n in counts if n > 0)


class Progress:
    """Looks at the loss once, after a quarter of a training, and at every flip rate."""

    def __init__(self, entropy: Optional[float], max_update: int):
        self._entropy = entropy
        self._look = max(200, max_update // 4) if max_update else 2000
        self._looked = entropy is None
        self._flips_told = False

    def is_due(self, num_updates: int) -> bool:
        """Whether the loss is to be looked at, if it is known."""
        return not self._looked and num_updates >= self._look

    def of_loss(self, loss: float, num_updates: int) -> Optional[str]:
        """A warning if a loss in bits is that of word frequencies."""
        self._looked = True
        if self._entropy is None or loss < self._entropy - 0.2:
            return None
        return (
            f"after {num_updates} updates the loss is {loss:.2f} bits, and knowing only"
            f" how frequent each word is gives {self._entropy:.2f}: nothing is learned."
            " Lower --lr, lower --mask-gain, or give --mask-preset best"
        )

    def of_flips(self, rate: float, num_updates: int) -> Optional[str]:
        """A warning, once, if an update turns very many bits of the masks."""
        if rate < LARGEST_FLIP_RATE or self._flips_told:
            return None
        self._flips_told = True
        return (
            f"update {num_updates} turned {rate:.1%} of all mask bits: the rate is too"
            " high for masks to settle; lower --lr"
        )
