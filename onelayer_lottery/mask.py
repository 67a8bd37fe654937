"""The mask: which weights are kept, and how a gradient reaches the scores."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Floating point numbers of one sign order as their bit patterns do.
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def kept_count(size: int, keep: float) -> int:
    """Number of positions that a mask keeps of a tensor with ``size`` values."""
    return round(keep * size)


def top_k_mask(scores: Tensor, keep: float) -> Tensor:
    """Mark the ``kept_count`` positions with the largest |score|.

    Of equal magnitudes the lowest index comes first, as in a stable sort. The count
    is exact in every precision, also where scores tie or are not numbers (NaN counts
    as largest). On an accelerator nothing waits for the host.
    """
    kept = kept_count(scores.numel(), keep)
    if kept <= 0 or kept >= scores.numel():
        return torch.full_like(scores, kept > 0, dtype=torch.bool)
    magnitude = scores.detach().abs().view(_BITS[scores.dtype]).flatten()
    select = _select_on_cpu if magnitude.device.type == "cpu" else _select_on_device
    return select(magnitude, kept).view(scores.shape)


def straight_through(scores: Tensor, frozen: Tensor, effective: Tensor) -> Tensor:
    """Return ``effective`` = frozen * mask so that its gradient reaches the scores.

    The mask is taken for the identity: dL/dscores = dL/dW * frozen * sign(scores).
    """
    return _StraightThrough.apply(scores, frozen, effective)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor, frozen: Tensor, effective: Tensor) -> Tensor:
        ctx.save_for_backward(scores, frozen)
        return effective.view_as(effective)

    @staticmethod
    def backward(ctx, grad: Tensor):
        scores, frozen = ctx.saved_tensors
        slope = grad * frozen
        # The sign is taken over as a bit: half the passes of a product, and a score of
        # zero does not lose its gradient, as it would by sign(0).
        bits = _BITS[scores.dtype]
        signs = scores.view(bits) & torch.iinfo(bits).min
        slope.view(bits).bitwise_xor_(signs)
        return slope, None, None


def _select_on_cpu(magnitude: Tensor, kept: int) -> Tensor:
    place = magnitude.numel() - kept
    threshold = int(np.partition(magnitude.numpy(), place)[place])
    mask = magnitude >= threshold
    surplus = int(mask.count_nonzero()) - kept
    if surplus:
        tied = (magnitude == threshold).nonzero().flatten()
        mask[tied[tied.numel() - surplus :]] = False
    return mask


def _select_on_device(magnitude: Tensor, kept: int) -> Tensor:
    threshold = magnitude.kthvalue(magnitude.numel() - kept + 1).values
    mask = magnitude > threshold
    tied = magnitude == threshold
    return mask | (tied & (tied.cumsum(0) <= kept - mask.sum()))
