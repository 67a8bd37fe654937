"""The idea in plain torch: no cache, nothing fast; tests compare everything with it."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k(scores: Tensor, keep: float) -> Tensor:
    """M = top-k(|S|): 1 at the round(keep * n) largest |S|, ties in order of index."""
    magnitude = scores.detach().abs().flatten()
    order = magnitude.sort(descending=True, stable=True).indices
    mask = torch.zeros_like(magnitude)
    mask[order[: round(keep * mask.numel())]] = 1
    return mask.view(scores.shape)


def effective_weight(
    scores: Tensor,
    frozen: Tensor,
    *,
    keep: float,
    signed: bool = False,
    softness: float = 0.0,
) -> Tensor:
    """W = frozen * M; a gradient reaches the scores S as if M were |S|.

    If the mask is signed, M has the signs of S, and backward treats it as S. Softness
    mixes M with min(|S| / 2t, 1), where t is the smallest |S| of a weight that is kept.
    """
    sign = torch.ones_like(scores).copysign(scores.detach())
    magnitude = scores * sign  # |S|, but with a gradient at 0 too
    mask = top_k(scores, keep)
    if softness > 0:
        smallest = magnitude.detach()[mask * frozen != 0].min()
        mask = mask.lerp((magnitude.detach() / (2 * smallest)).clamp(max=1), softness)
    if signed:
        mask, magnitude = mask * sign, scores
    return frozen * (mask + (magnitude - magnitude.detach()))  # plus zero
