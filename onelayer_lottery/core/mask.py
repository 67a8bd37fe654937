"""The mask: which weights are kept, and how a gradient reaches the scores."""

from __future__ import annotations

import math
from typing import Optional

import numpy as np
import torch
from torch import Tensor

from onelayer_lottery.core.kernels import (
    MAGNITUDE,
    can_loop,
    score_gradient,
    write_above,
)
from onelayer_lottery.core.selection import BITS, on_accelerator, selection_for

# The bit pattern of the smallest magnitude that a mask kept.
ThresholdHint = int

_NEAR = 1 << 15  # bit patterns on each side of a hint: 1/256 to 1/128 of its value


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
    if on_accelerator(scores):
        selection = selection_for([scores.numel()], [kept], device=scores.device)
        return selection.masks([scores])[0]
    magnitude = scores.detach().abs().view(BITS[scores.dtype]).flatten()
    return _select_on_cpu(magnitude, kept).view(scores.shape)


def write_masked(
    scores: Tensor,
    frozen: Tensor,
    keep: float,
    *,
    out: Tensor,
    hint: Optional[ThresholdHint] = None,
) -> Optional[ThresholdHint]:
    """Write frozen * ``top_k_mask`` to ``out``; return a hint for the next update.

    Scores move little between two updates. With the hint of the last one, the same
    exact mask takes one pass over the scores: only those near the last threshold are
    compared with each other. None is returned where the compiled loops cannot run.
    """
    kept = kept_count(scores.numel(), keep)
    tensors = (scores, frozen, out)
    if not (0 < kept < scores.numel() and can_loop(*tensors)):
        torch.mul(top_k_mask(scores, keep).to(frozen.dtype), frozen, out=out)
        return None
    bits, frozen_bits, out_bits = (
        t.detach().view(torch.int32).flatten().numpy() for t in tensors
    )
    threshold = None
    if hint is not None:
        threshold = _write_near(bits, frozen_bits, out_bits, kept, hint)
    if threshold is None:
        near = _threshold(bits & np.int32(MAGNITUDE), kept)
        threshold = _write_near(bits, frozen_bits, out_bits, kept, near)
    if threshold is None:  # ties of the largest bit pattern, a NaN
        torch.mul(top_k_mask(scores, keep).to(frozen.dtype), frozen, out=out)
        return None
    out[:0].zero_()  # tells autograd that it has changed
    return threshold


def flip_signs(frozen: Tensor, scores: Tensor) -> Tensor:
    """Negate the frozen weights whose score has its sign bit set."""
    return frozen * torch.copysign(frozen.new_ones(()), scores).to(frozen.dtype)


def soften(product: Tensor, scores: Tensor, frozen: Tensor, softness: float) -> None:
    """Mix a masked product, in place, with the product under a soft mask.

    The soft mask is min(|S| / 2t, 1), t the smallest |S| that is kept: it takes all
    values from 0 to 1, and 1/2 at the threshold.
    """
    magnitude = scores.detach().abs()
    smallest = magnitude.masked_fill(product == 0, math.inf).min()
    smallest = smallest.clamp_(min=torch.finfo(scores.dtype).tiny)  # not 0 / 0
    soft = magnitude.div_(2 * smallest).clamp_(max=1).mul_(frozen)
    product.lerp_(soft.to(product.dtype), softness)


def straight_through(
    scores: Tensor, frozen: Tensor, effective: Tensor, *, signed: bool = False
) -> Tensor:
    """Return ``effective`` = frozen * mask so that its gradient reaches the scores.

    Backward treats the mask as |S|, or as S if it is signed:
    dL/dS = dL/dW * frozen * sign(S), or without the sign.
    """
    return _StraightThrough.apply(scores, frozen, effective, signed)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, scores: Tensor, frozen: Tensor, effective: Tensor, signed: bool
    ) -> Tensor:
        # Not save_for_backward: the result may serve several backward passes.
        ctx.scores, ctx.frozen, ctx.signed = scores.detach(), frozen, signed
        return effective.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        scores, frozen = ctx.scores, ctx.frozen
        grad = grad.to(scores.dtype)  # in half precision a product could vanish
        if ctx.signed:
            return grad * frozen, None, None, None
        if can_loop(grad, frozen, scores):
            slope = torch.empty_like(scores)
            score_gradient(*(t.view(-1).numpy() for t in (grad, frozen, scores, slope)))
        else:
            slope = flip_signs(grad * frozen, scores)
        return slope, None, None, None


def _threshold(magnitude: np.ndarray, kept: int) -> int:
    """The smallest magnitude that is kept; reorders the array."""
    rank = magnitude.size - kept
    magnitude.partition(rank)
    return int(magnitude[rank])


def _select_on_cpu(magnitude: Tensor, kept: int) -> Tensor:
    threshold = _threshold(magnitude.numpy().copy(), kept)
    mask = magnitude >= threshold
    surplus = int(mask.count_nonzero()) - kept
    if surplus:
        tied = (magnitude == threshold).nonzero().flatten()
        mask[tied[tied.numel() - surplus :]] = False
    return mask


def _write_near(
    scores: np.ndarray, frozen: np.ndarray, out: np.ndarray, kept: int, near: int
) -> Optional[int]:
    """Write the masked weights if the threshold is close to ``near``, and return it.

    The arrays are bit patterns. First everything in the bracket around ``near`` and
    above it is written; then the surplus in the bracket is zeroed.
    """
    low = max(near - _NEAR, 0)
    width = min(2 * _NEAR, MAGNITUDE - low)
    dropped, indices, offsets = write_above(scores, frozen, out, low, width)
    surplus = scores.size - dropped - kept
    if not 0 <= surplus <= indices.size:
        return None
    if surplus == indices.size:
        out[indices] = 0
        return low + width
    offset = np.partition(offsets, surplus)[surplus]
    out[indices[offsets < offset]] = 0
    tied = indices[offsets == offset]
    # Of equal magnitudes the last indices are dropped.
    more = surplus - np.count_nonzero(offsets < offset)
    out[tied[tied.size - more :]] = 0
    return low + int(offset)
