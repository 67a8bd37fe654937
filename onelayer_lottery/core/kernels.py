"""The two compiled loops over all weights of a model.

Each takes one pass over memory. They are built with the package where a C compiler is
found; where they are missing, or for tensors that they do not support, torch does the
same in several passes.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

try:
    import onelayer_lottery.core._kernels as compiled
except ImportError:  # built without a compiler
    compiled = None

MAGNITUDE = 0x7FFFFFFF  # all bits of an fp32 number but its sign
_BRACKETED = 32  # at most one value in so many is expected to lie in a bracket
_PROCESS = os.getpid()


class Bracket(NamedTuple):
    """What ``write_above`` saw around a threshold."""

    dropped: int  # values below the bracket
    indices: np.ndarray  # of the values in it
    offsets: np.ndarray  # how far each of them lies above its lower end


def can_loop(*tensors: Tensor) -> bool:
    """Whether the compiled loops were built and support these tensors."""
    return compiled is not None and all(
        t.dtype == torch.float32 and t.is_contiguous() and t.device.type == "cpu"
        for t in tensors
    )


def write_above(
    scores: np.ndarray, frozen: np.ndarray, out: np.ndarray, low: int, width: int
) -> Bracket:
    """Write ``frozen`` where the magnitude of a score is at least ``low``, else zero.

    All arrays are bit patterns of fp32 numbers, as int32. The bracket is
    [low, low + width).
    """
    for room in (scores.size // _BRACKETED, scores.size + compiled.BLOCK):
        indices, offsets = np.empty((2, room), np.int32)
        arrays = (scores, frozen, out, indices, offsets)
        dropped, count = compiled.write_above(*arrays, low, width, _threads())
        if count >= 0:
            break
    return Bracket(dropped, indices[:count], offsets[:count])


def score_gradient(
    grad: np.ndarray, frozen: np.ndarray, scores: np.ndarray, out: np.ndarray
) -> None:
    """Write grad * frozen * sign(scores), all fp32.

    The sign is copied as a bit, so that a score of zero has a gradient too.
    """
    compiled.score_gradient(grad, frozen, scores, out, _threads())


def _threads() -> int:
    """As many as torch uses; one in a fork, which inherits OpenMP without threads."""
    return torch.get_num_threads() if os.getpid() == _PROCESS else 1
