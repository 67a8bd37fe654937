"""Who holds a gradient: whether it may be overwritten, because nobody else can see it.

The gradient of a masked weight is as large as the weight, and of no use once that of
its scores is known. torch counts who holds a tensor: Python, torch itself, other
tensors over the same memory and, of a view, those who hold its base. If these are as
few as in the backward pass of a plain layer, nobody is left who could see a change.
"""

from __future__ import annotations

import sys
from typing import Callable, FrozenSet, Optional, Set, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

Holders = Tuple[int, int, int, int]

_COUNTED = hasattr(Tensor, "_use_count") and hasattr(torch._C, "_storage_Use_Count")


def holders(grad: Tensor) -> Optional[Holders]:
    """How often a gradient is held; None where torch does not tell."""
    if not _COUNTED:
        return None
    base = grad._base
    return (
        sys.getrefcount(grad),
        grad._use_count(),
        torch._C._storage_Use_Count(grad.untyped_storage()._cdata),
        0 if base is None else base._use_count(),
    )


def fewest_holders(
    function: Callable[[Tensor, Set[Holders]], Tensor],
) -> FrozenSet[Holders]:
    """What ``holders`` says in the backward of a function if nobody else has it.

    That is in a plain layer, in an embedding, and of a weight that is both. It depends
    on who calls whom: ``function`` must be the one that will ask, and ask whether the
    holders are in the set that it is given here.
    """
    asked = _Asked()
    with torch.inference_mode(False), torch.enable_grad():
        for looked_up, multiplied in ((False, True), (True, False), (True, True)):
            weight = function(torch.ones(2, 2, requires_grad=True), asked)
            x = torch.ones(3, 2)
            if looked_up:
                x = F.embedding(torch.tensor([0, 1, 1]), weight)
            if multiplied:
                x = F.linear(x, weight)
            x.pow(2).sum().backward()
    return frozenset(asked - {None})


class _Asked(set):
    """Holds nothing, and remembers what it was asked for."""

    def __contains__(self, found: object) -> bool:
        self.add(found)
        return False
