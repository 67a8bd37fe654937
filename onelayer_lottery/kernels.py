"""The two loops over all weights of a model: by a compiled module, else by NumPy.

Both give the same bits. The compiled one is built with the package where a C compiler
is found, and takes one pass over memory.
"""

from __future__ import annotations

import os
from typing import Optional, Tuple

import numpy as np
import torch

from onelayer_lottery.parallel import parallel

try:
    from onelayer_lottery import _kernels as compiled
except ImportError:  # built without a compiler
    compiled = None

MAGNITUDE = 0x7FFFFFFF  # all bits of an fp32 number but its sign
_CACHED = 1 << 17  # values at a time: what NumPy needs for them fits a core's cache
_FEW = 32  # a bracket has one of so many values, mostly fewer
_WORD = 32  # signs that are packed together
_PROCESS = os.getpid()

Bracket = Tuple[int, np.ndarray, np.ndarray]


def room_for_signs(size: int) -> Optional[np.ndarray]:
    """Where ``write_above`` packs signs for ``pass_on``; None where it does not."""
    return np.empty(-(-size // _WORD), np.uint32) if compiled is not None else None


def write_above(
    scores: np.ndarray,
    frozen: np.ndarray,
    out: np.ndarray,
    signs: Optional[np.ndarray],
    low: int,
    width: int,
) -> Bracket:
    """Write ``frozen`` where the magnitude of a score is ``low`` or more, else zero.

    All arrays are bit patterns of fp32 numbers, as int32. ``signs``, if there is room
    for them, become those of the scores, packed. Returns how many are zeroed, and of
    the magnitudes in [low, low + width) the places and what they are above low.
    """
    if signs is not None:
        return _write_compiled(scores, frozen, out, signs, low, width)

    def part(start: int) -> Bracket:
        cut = slice(start, start + _CACHED)
        zeroed, found, above = _write_numpy(
            scores[cut], frozen[cut], out[cut], low, width
        )
        return zeroed, found + start, above

    parts = parallel(part, range(0, scores.size, _CACHED))
    zeroed, places, heights = zip(*parts)
    return sum(zeroed), np.concatenate(places), np.concatenate(heights)


def pass_on(
    grad: np.ndarray,
    frozen: np.ndarray,
    scores: np.ndarray,
    out: np.ndarray,
    *,
    signs: Optional[np.ndarray] = None,
) -> None:
    """Write grad * frozen * sign(scores), all fp32; the packed signs are read faster.

    The sign is taken over as a bit: a score of zero does not lose its gradient.
    """
    if compiled is not None:
        packed = signs is not None
        of_scores = signs if packed else scores
        compiled.pass_on(grad, frozen, of_scores, out, packed, _threads())
        return

    def part(start: int) -> None:
        cut = slice(start, start + _CACHED)
        _pass_numpy(grad[cut], frozen[cut], scores[cut], out[cut])

    parallel(part, range(0, grad.size, _CACHED))


def _threads() -> int:
    """Those of torch; a fork inherits OpenMP without its threads and must do alone."""
    return torch.get_num_threads() if os.getpid() == _PROCESS else 1


def _write_compiled(scores, frozen, out, signs, low, width) -> Bracket:
    for room in (scores.size // _FEW, scores.size + compiled.BLOCK):
        places, heights = np.empty((2, room), np.int32)
        arrays = (scores, frozen, out, signs, places, heights)
        dropped, found = compiled.write_above(*arrays, low, width, _threads())
        if found >= 0:
            break
    return dropped, places[:found], heights[:found]


def _write_numpy(scores, frozen, out, low, width) -> Bracket:
    above = scores & np.int32(MAGNITUDE)
    above -= np.int32(low)
    places = np.flatnonzero(above.view(np.uint32) < np.uint32(width))
    heights = above[places]
    dropped = np.count_nonzero(above < 0)
    above >>= 31  # all bits set where it is below
    np.bitwise_not(above, out=above)
    np.bitwise_and(above, frozen, out=out)
    return dropped, places, heights


def _pass_numpy(grad, frozen, scores, out) -> None:
    np.multiply(grad, frozen, out=out)
    bits = out.view(np.int32)
    np.bitwise_xor(bits, scores.view(np.int32) & np.int32(~MAGNITUDE), out=bits)
