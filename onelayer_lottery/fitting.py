"""Fitting: scores and scales whose masked weight comes closest to a trained one."""

from __future__ import annotations

from typing import List, Optional

import torch
from torch import Tensor

from onelayer_lottery.mask import top_k_mask, turned
from onelayer_lottery.modules import scaled, score_bound

_ROUNDS = 4  # of mask and scales in turn; eight came 0.5% closer at most on a layer


def fit(
    trained: Tensor,
    frozen: Tensor,
    *,
    keep: float,
    scales: List[Tensor],
    signed: bool = False,
    bound: Optional[float] = None,
) -> Tensor:
    """Choose scores, and set the scales in place, so that W is close to ``trained``.

    In turn, the mask keeps the weights that lower the squared distance most, and the
    scales take their least-squares values. The scores are the ranks of the weights by
    that measure, spread evenly over the range of random first scores, so that the same
    learning rate fits both; those of a signed mask are negative where weights of W have
    to be turned.
    """
    trained = trained.detach().float()
    scores = torch.empty_like(frozen)
    bound = score_bound(frozen.shape[1]) if bound is None else bound
    for _ in range(_ROUNDS if scales else 1):
        whole = scaled(frozen, scales)
        agreement = whole * trained if signed else torch.ones_like(whole)
        whole = turned(whole, agreement)
        _rank(whole * (2 * trained - whole), scores, bound)
        scores.copysign_(agreement)
        masked = turned(frozen, scores) * top_k_mask(scores, keep)
        _fit_scales(trained, masked, scales)
    return scores


def _rank(value: Tensor, scores: Tensor, bound: float) -> None:
    order = value.flatten().argsort(stable=True)
    size = order.numel()
    ranks = (torch.arange(size, dtype=torch.float64) + 0.5) * (bound / size)
    scores.view(-1)[order] = ranks.to(scores.dtype)


def _fit_scales(trained: Tensor, masked: Tensor, scales: List[Tensor]) -> None:
    for place, scale in enumerate(scales):
        others = scaled(masked, scales[:place] + scales[place + 1 :])
        along = [d for d in range(2) if scale.shape[d] == 1]
        power = others.pow(2).sum(along, keepdim=True)
        found = (others * trained).sum(along, keepdim=True) / power.clamp_min(1e-12)
        # Where nothing is kept, as in the row of a padding symbol, any scale will do.
        scale.copy_(torch.where(power > 0, found, torch.ones_like(found)))
