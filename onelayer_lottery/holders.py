"""Who holds a gradient: whether it may be overwritten, because nobody else can see it.

The gradient of a masked weight is as large as the weight, and of no use once that of
its scores is known. torch counts who holds a tensor: Python, torch itself, other
tensors over the same memory and, of a view, those who hold its base. If these are as
few as in the backward pass of a plain layer, nobody is left who could see a change.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import FrozenSet, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

Holders = Tuple[int, int, int, int]

_COUNTED = hasattr(Tensor, "_use_count") and hasattr(torch._C, "_storage_Use_Count")


def holders(grad: Tensor) -> Optional[Holders]:
    """How often a gradient is held; to be called by a function's backward itself.

    None where torch does not tell.
    """
    if not _COUNTED:
        return None
    base = grad._base
    return (
        sys.getrefcount(grad),
        grad._use_count(),
        torch._C._storage_Use_Count(grad.untyped_storage()._cdata),
        0 if base is None else base._use_count(),
    )


@lru_cache(maxsize=None)
def fewest_holders() -> FrozenSet[Holders]:
    """What ``holders`` says of a gradient that nobody else has.

    That of a plain layer, of an embedding, and of a weight that is both.
    """
    if not _COUNTED:
        return frozenset()
    found: List[Holders] = []
    with torch.inference_mode(False), torch.enable_grad():
        for looked_up in (False, True):
            for multiplied in (False, True):
                weight = _Look.apply(torch.ones(2, 2, requires_grad=True), found)
                x = torch.ones(3, 2)
                if looked_up:
                    x = F.embedding(torch.tensor([0, 1, 1]), weight)
                if multiplied:
                    x = F.linear(x, weight)
                if looked_up or multiplied:
                    x.pow(2).sum().backward()
    return frozenset(found)


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, found: List[Holders]) -> Tensor:
        ctx.found = found
        return weight.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        ctx.found.append(holders(grad))
        return None, None
