"""The two loops over all weights of a model: by a compiled module, else by NumPy.

Both give the same bits. The compiled one is built with the package where a C compiler
is found, and takes one pass over memory.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from onelayer_lottery.parallel import parallel

try:
    from onelayer_lottery import _kernels as compiled
except ImportError:  # built without a compiler
    compiled = None

MAGNITUDE = 0x7FFFFFFF  # all bits of an fp32 number but its sign
_CACHED = 1 << 17  # values at a time: what NumPy needs for them fits a core's cache
_LARGE = 1 << 19  # values that are worth a thread

Bracket = Tuple[int, np.ndarray, np.ndarray]


def write_above(
    scores: np.ndarray, frozen: np.ndarray, out: np.ndarray, low: int, width: int
) -> Bracket:
    """Write ``frozen`` where the magnitude of a score is ``low`` or more, else zero.

    All arrays are bit patterns of fp32 numbers, as int32. Returns how many are zeroed,
    and of the magnitudes in [low, low + width) the places and what they are above low.
    """
    write = _write_numpy if compiled is None else _write_compiled

    def part(start: int) -> Bracket:
        cut = slice(start, start + block)
        dropped, places, heights = write(scores[cut], frozen[cut], out[cut], low, width)
        return dropped, places + start, heights

    block = _CACHED if compiled is None else _LARGE
    dropped, places, heights = zip(*parallel(part, range(0, scores.size, block)))
    return sum(dropped), np.concatenate(places), np.concatenate(heights)


def pass_on(
    grad: np.ndarray, frozen: np.ndarray, scores: np.ndarray, out: np.ndarray
) -> None:
    """Write grad * frozen * sign(scores), all fp32.

    The sign is taken over as a bit: a score of zero does not lose its gradient.
    """
    write = _pass_numpy if compiled is None else compiled.pass_on

    def part(start: int) -> None:
        cut = slice(start, start + block)
        write(grad[cut], frozen[cut], scores[cut], out[cut])

    block = _CACHED if compiled is None else _LARGE
    parallel(part, range(0, grad.size, block))


def _write_compiled(scores, frozen, out, low, width) -> Bracket:
    places, heights = np.empty_like(scores), np.empty_like(scores)
    dropped, found = compiled.write_above(
        scores, frozen, out, places, heights, low, width
    )
    return dropped, places[:found].astype(np.int64), heights[:found].copy()


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
