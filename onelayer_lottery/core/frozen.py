"""Frozen random weights as torch tensors, drawn in NumPy by ``frozen.weights``."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from onelayer_lottery.frozen import weights


def frozen_weight(
    seed: int, role: str, *, shape: Tuple[int, int], **options: Any
) -> Tensor:
    """Draw the frozen weight of a role; see ``weights.frozen_weight`` for options."""
    return torch.from_numpy(weights.frozen_weight(seed, role, shape=shape, **options))


def uniform(
    seed: int,
    role: str,
    *,
    shape: Tuple[int, ...],
    bound: float,
    out: Optional[Tensor] = None,
) -> Tensor:
    """Draw from U(-bound, bound), never exactly 0; into ``out`` if it is given."""
    if out is None:
        out = torch.empty(shape)
    weights.uniform(seed, role, shape=shape, bound=bound, out=out.detach().numpy())
    return out


def normal(seed: int, role: str, *, shape: Tuple[int, ...], std: float) -> Tensor:
    """Draw from N(0, std^2)."""
    return torch.from_numpy(weights.normal(seed, role, shape=shape, std=std))


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's fp32 little-endian bytes."""
    return weights.digest(tensor.detach().cpu().float().numpy())
