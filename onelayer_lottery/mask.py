"""The mask: which weights are kept, and how a gradient reaches the scores."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import AbstractSet, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from onelayer_lottery.holders import Holders, fewest_holders, holders
from onelayer_lottery.kernels import MAGNITUDE, pass_on, room_for_signs, write_above

# Floating point numbers of one sign order as their bit patterns do.
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}

_NEAR = 1 << 15  # last places on each side of a threshold: 1/256 to 1/128 of its value


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


class Written(NamedTuple):
    """What was found while a masked weight was written."""

    threshold: int  # bit pattern of the smallest magnitude that is kept
    signs: Optional[np.ndarray]  # of the scores, a bit each, for the way back


def write_masked(
    scores: Tensor,
    frozen: Tensor,
    keep: float,
    *,
    out: Tensor,
    last: Optional[Written] = None,
) -> Optional[Written]:
    """Write frozen * ``top_k_mask`` to ``out``; return a hint for the next time.

    Scores move little between two updates. Given the hint as ``last``, the same exact
    mask takes one pass over the scores: only those close to the last threshold are
    compared with each other. The memory of its signs is used again.
    """
    kept = kept_count(scores.numel(), keep)
    tensors = (scores, frozen, out)
    if not (0 < kept < scores.numel() and _plain(*tensors)):
        torch.mul(top_k_mask(scores, keep).to(frozen.dtype), frozen, out=out)
        return None
    score_bits, frozen_bits, out_bits = (
        t.detach().view(torch.int32).flatten().numpy() for t in tensors
    )
    signs = room_for_signs(scores.numel()) if last is None else last.signs
    arrays = (score_bits, frozen_bits, out_bits, signs)
    threshold = None if last is None else _write_near(*arrays, kept, last.threshold)
    if threshold is None:
        near = _threshold(score_bits & np.int32(MAGNITUDE), kept)
        threshold = _write_near(*arrays, kept, near)
    out[:0].zero_()  # tells autograd that it has changed
    return Written(threshold, signs)


def turned(frozen: Tensor, scores: Tensor) -> Tensor:
    """The frozen weights, turned where the sign bit of their score is set."""
    return frozen * torch.copysign(frozen.new_ones(()), scores)


def soften(product: Tensor, scores: Tensor, frozen: Tensor, softness: float) -> None:
    """Mix a masked product, in place, with one under a soft mask.

    The soft mask is min(|score| / 2t, 1), t the smallest score that is kept: it has all
    values between dropped and kept, and a half at the threshold.
    """
    magnitude = scores.detach().abs()
    smallest = magnitude.masked_fill(product == 0, math.inf).min()
    soft = magnitude.div_(2 * smallest).clamp_(max=1).mul_(frozen)
    product.lerp_(soft, softness)


def straight_through(
    scores: Tensor,
    frozen: Tensor,
    effective: Tensor,
    *,
    signed: bool = False,
    written: Optional[Written] = None,
) -> Tensor:
    """Return ``effective`` = frozen * mask so that its gradient reaches the scores.

    The mask is taken for the magnitude of the scores, or if it is signed for the scores
    themselves: dL/dscores = dL/dW * frozen * sign(scores), or without the sign. What
    ``write_masked`` returned for ``effective`` makes it faster.
    """
    signs = None if written is None else written.signs
    fewest = _fewest_holders()
    return _StraightThrough.apply(scores, frozen, effective, signed, signs, fewest)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        scores: Tensor,
        frozen: Tensor,
        effective: Tensor,
        signed: bool,
        signs: Optional[np.ndarray],
        fewest: AbstractSet[Holders],
    ) -> Tensor:
        # Not save_for_backward: the result may serve several backward passes.
        ctx.scores, ctx.frozen, ctx.signed = scores.detach(), frozen, signed
        ctx.signs, ctx.fewest = signs, fewest
        return effective.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        # In place where nobody can see it: a copy takes memory, and time to fill it.
        unseen = holders(grad) in ctx.fewest and grad.is_contiguous()
        slope = grad if unseen else torch.empty_like(ctx.scores)
        scores, frozen = ctx.scores, ctx.frozen
        if ctx.signed:
            torch.mul(grad, frozen, out=slope)
        elif _plain(grad, frozen, scores):
            arrays = (t.view(-1).numpy() for t in (grad, frozen, scores, slope))
            pass_on(*arrays, signs=ctx.signs)
        else:
            torch.mul(grad, frozen, out=slope)
            bits = _BITS[slope.dtype]
            signs = scores.view(bits) & torch.iinfo(bits).min
            slope.view(bits).bitwise_xor_(signs)
        return slope, None, None, None, None, None


@lru_cache(maxsize=None)
def _fewest_holders() -> AbstractSet[Holders]:
    ones = torch.ones(2, 2)
    return fewest_holders(
        lambda scores, found: _StraightThrough.apply(
            scores, ones, ones, False, None, found
        )
    )


def _plain(*tensors: Tensor) -> bool:
    """Whether tensors are what the loops for the CPU take."""
    return all(
        t.dtype == torch.float32 and t.is_contiguous() and t.device.type == "cpu"
        for t in tensors
    )


def _threshold(magnitude: np.ndarray, kept: int) -> int:
    """The smallest magnitude that is kept; the array is left in another order."""
    place = magnitude.size - kept
    magnitude.partition(place)
    return int(magnitude[place])


def _select_on_cpu(magnitude: Tensor, kept: int) -> Tensor:
    threshold = _threshold(magnitude.numpy().copy(), kept)
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


def _write_near(
    scores: np.ndarray,
    frozen: np.ndarray,
    out: np.ndarray,
    signs: Optional[np.ndarray],
    kept: int,
    near: int,
) -> Optional[int]:
    """Write what is kept if the threshold is close to ``near``, and return it.

    All arguments but the numbers are bit patterns. First everything above the bracket
    around ``near`` is written and everything in it; then what is too much in it is
    taken back.
    """
    low = max(near - _NEAR, 0)
    width = min(2 * _NEAR, MAGNITUDE - low)
    dropped, places, heights = write_above(scores, frozen, out, signs, low, width)
    surplus = scores.size - dropped - kept
    if not 0 <= surplus <= places.size:
        return None
    if surplus == places.size:
        out[places] = 0
        return low + width
    height = np.partition(heights, surplus)[surplus]
    out[places[heights < height]] = 0
    tied = places[heights == height]
    # Of equal magnitudes the last indices go.
    more = surplus - np.count_nonzero(heights < height)
    out[tied[tied.size - more :]] = 0
    return low + int(height)
