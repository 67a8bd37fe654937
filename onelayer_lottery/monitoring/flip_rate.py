"""The flip rate: the fraction of mask bits that one update flips."""

from __future__ import annotations

from typing import List, Optional

from torch import Tensor, nn

from onelayer_lottery.planting.contents import masked_weights

INTERVAL = 100  # updates between measurements, which take two masks of each layer


class FlipRate:
    """Compare the masks before and after one update in a hundred."""

    def __init__(self) -> None:
        self._before: List[Tensor] = []
        self._num_updates = -1

    def after(self, model: nn.Module, num_updates: int) -> Optional[float]:
        """Return the fraction of bits that the last update flipped, if measured."""
        if num_updates == self._num_updates:  # another batch of the same update
            return None
        follows = num_updates == self._num_updates + 1
        self._num_updates = num_updates
        if (num_updates + 1) % INTERVAL == 0:
            self._before = _masks(model)
            return None
        before, self._before = self._before, []
        if not (before and follows):
            return None
        flipped = sum((a != b).sum() for a, b in zip(before, _masks(model)))
        return float(flipped) / sum(mask.numel() for mask in before)


def _masks(model: nn.Module) -> List[Tensor]:
    return [weight.mask() for _, weight in masked_weights(model)]
