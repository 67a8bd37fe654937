"""FrozenSpec: all arguments of a frozen weight, enough to draw it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np

from onelayer_lottery.frozen.weights import frozen_weight


@dataclass(frozen=True)
class FrozenSpec:
    """Everything that decides the bits of a frozen weight."""

    seed: int
    role: str
    shape: Tuple[int, int]  # (out, in)
    init: str
    keep: float  # 1 for a weight without a mask
    fan: str
    gain: float
    padding: Optional[int]  # row of an embedding that is zero

    def draw(self) -> np.ndarray:
        """Draw the weight, fp32 of ``shape``."""
        return frozen_weight(
            self.seed,
            self.role,
            shape=self.shape,
            init=self.init,
            keep=self.keep,
            fan=self.fan,
            gain=self.gain,
            padding=self.padding,
        )
