"""Sinusoidal positions, as fairseq computes them."""

from __future__ import annotations

import numpy as np

from onelayer_lottery.text.dictionary import PAD


def sinusoids(positions: int, width: int) -> np.ndarray:
    """Return the positions (positions, width), from the first word's on."""
    half = width // 2
    step = np.log(10000) / (half - 1)
    rates = np.exp(np.arange(half, dtype=np.float32) * np.float32(-step))
    places = np.arange(PAD + 1, PAD + 1 + positions, dtype=np.float32)
    angles = places[:, None] * rates
    table = np.zeros((positions, width), np.float32)
    np.sin(angles, out=table[:, :half])
    np.cos(angles, out=table[:, half : 2 * half])
    return table
