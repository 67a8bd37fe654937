"""Fit scores and scales so that a masked weight approximates a trained one."""

from __future__ import annotations

from typing import List, Optional

import torch
from torch import Tensor

from onelayer_lottery.core.mask import flip_signs, top_k_mask
from onelayer_lottery.core.modules import scaled, score_bound

_ROUNDS = 4  # alternations of mask and scales; eight came at most 0.5% closer


def fit(
    trained: Tensor,
    frozen: Tensor,
    *,
    keep: float,
    scales: List[Tensor],
    signed: bool = False,
    bound: Optional[float] = None,
) -> Tensor:
    """Return scores, and set the scales in place, so that W is close to ``trained``.

    Two steps alternate: the mask keeps the weights that reduce the squared distance
    most, then the scales take their least-squares values. The scores are the ranks of
    the weights by that reduction, spread evenly over the range of random first scores,
    so that the same learning rate suits both. Those of a signed mask are negative where
    a frozen weight has the wrong sign.
    """
    trained = trained.detach().float()
    scores = torch.empty_like(frozen)
    bound = score_bound(frozen.shape[1]) if bound is None else bound
    for _ in range(_ROUNDS if scales else 1):
        whole = scaled(frozen, scales)
        agreement = whole * trained if signed else torch.ones_like(whole)
        whole = flip_signs(whole, agreement)
        _rank(whole * (2 * trained - whole), scores, bound)
        scores.copysign_(agreement)
        masked = flip_signs(frozen, scores) * top_k_mask(scores, keep)
        _fit_scales(trained, masked, scales)
    return scores


def _rank(value: Tensor, scores: Tensor, bound: float) -> None:
    order = value.flatten().sort(stable=True).indices
    size = order.numel()
    ranks = (torch.arange(size, dtype=torch.float64) + 0.5) * (bound / size)
    scores.view(-1)[order] = ranks.to(scores.dtype)


def _fit_scales(trained: Tensor, masked: Tensor, scales: List[Tensor]) -> None:
    for index, scale in enumerate(scales):
        others = scaled(masked, scales[:index] + scales[index + 1 :])
        along = [d for d in range(2) if scale.shape[d] == 1]
        power = others.pow(2).sum(along, keepdim=True)
        best = (others * trained).sum(along, keepdim=True) / power.clamp_min(1e-12)
        # Where nothing is kept, as in the row of a padding symbol, any scale will do.
        scale.copy_(torch.where(power > 0, best, torch.ones_like(best)))
