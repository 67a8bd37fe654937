"""Masks as bits: eight positions to a byte, entropy-coded where that is smaller.

Coding "bits" is the packed bytes. Coding "ans" is asymmetric numeral systems over those
bytes, in many lanes at once so that NumPy can run them; docs/ticket-format.md defines
both. A decoder needs integer arithmetic only, which is the same on every machine.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

CODINGS = ("bits", "ans")
POSITIONS_PER_BYTE = 128  # at most, so that a small file cannot claim a huge mask

_LANE_BYTES = 512  # packed bytes per lane, whose state costs about 3 bytes
_PROBABILITY_BITS = 12  # eighth powers fit in 128 bits, for decoders in C
_TOTAL_BITS = 14
_TOTAL = 1 << _TOTAL_BITS  # sum of the frequencies of all byte values
_LOWEST = 1 << 16  # a state is in [2^16, 2^32) between two symbols


def encode_mask(mask: np.ndarray) -> Tuple[str, np.ndarray]:
    """Encode a mask the shorter way: "ans" if it saves at least 5%, else "bits".

    A mask has at least one position.
    """
    packed = pack(mask)
    kept = int(np.count_nonzero(mask))
    if 0.38 < kept / mask.size < 0.62:  # the entropy is above 0.95 bit
        return "bits", packed
    coded = _pad(_encode(packed, frequencies(kept, mask.size)), mask.size)
    if coded.size * 100 <= packed.size * 95:
        return "ans", coded
    return "bits", packed


def decode_mask(
    coding: str, payload: np.ndarray, *, size: int, kept: int
) -> np.ndarray:
    """Decode a flat mask of ``size`` positions; raise ValueError if it is damaged.

    Allocate no more than the size of the payload justifies.
    """
    if coding == "bits":
        packed = payload
    elif coding == "ans":
        packed = _decode(payload, size, kept)
    else:
        raise ValueError(
            f"coding {coding!r} is unknown; known are {', '.join(CODINGS)}"
        )
    mask = unpack(packed, size)
    count = int(np.count_nonzero(mask))
    if count != kept:
        raise ValueError(f"{count} positions are kept, {kept} were stated")
    return mask


def pack(mask: np.ndarray) -> np.ndarray:
    """Pack a mask row by row, position i into bit i % 8 of byte i // 8."""
    return np.packbits(mask.ravel(), bitorder="little")


def unpack(packed: np.ndarray, size: int) -> np.ndarray:
    """Reverse ``pack`` into a flat mask; raise ValueError if the length is wrong."""
    if packed.size != _byte_count(size):
        raise ValueError(
            f"{packed.size} bytes were found, {size} positions need {_byte_count(size)}"
        )
    if size % 8 and packed[-1] >> (size % 8):
        raise ValueError("the unused bits of the last byte are not zero")
    return np.unpackbits(packed, count=size, bitorder="little").view(bool)


def frequencies(kept: int, size: int) -> List[int]:
    """Return cumulative frequencies of the 256 byte values and their total.

    Bits are independent, 1 with probability kept / size. No frequency is zero.
    """
    whole = 1 << _PROBABILITY_BITS
    one = min(max((2 * kept * whole + size) // (2 * size), 1), whole - 1)
    starts, weight = [0], 0
    for value in range(256):
        ones = bin(value).count("1")
        weight += one**ones * (whole - one) ** (8 - ones)
        share = (_TOTAL - 256) * weight >> (8 * _PROBABILITY_BITS)
        starts.append(share + value + 1)
    return starts


def _byte_count(size: int) -> int:
    return -(-size // 8)


def _lane_count(byte_count: int) -> int:
    return -(-byte_count // _LANE_BYTES)


def _pad(coded: np.ndarray, size: int) -> np.ndarray:
    """Append zeros up to one byte per ``POSITIONS_PER_BYTE`` positions."""
    missing = -(-size // POSITIONS_PER_BYTE) - coded.size
    return np.pad(coded, (0, missing)) if missing > 0 else coded


def _encode(packed: np.ndarray, starts: List[int]) -> np.ndarray:
    lanes = _lane_count(packed.size)
    start = np.array(starts[:-1], dtype=np.uint32)
    frequency: np.ndarray = np.diff(np.array(starts, dtype=np.uint32))
    limit = frequency << np.uint32(32 - _TOTAL_BITS)
    states = np.full(lanes, _LOWEST, dtype=np.uint32)
    words = []
    # Encode backwards, because the decoder reads rows and their words forwards.
    last = (packed.size - 1) // lanes * lanes
    for first in range(last, -1, -lanes):
        row = packed[first : first + lanes]
        state = states[: row.size]
        full = np.flatnonzero(state >= limit[row])
        high = state[full]
        words.append(high.astype("<u2"))  # the low half
        state[full] = high >> np.uint32(16)
        share = frequency[row]
        quotient = state // share
        state += quotient * (np.uint32(_TOTAL) - share) + start[row]
    stream = [states.astype("<u4").view(np.uint8)]
    stream += [word.view(np.uint8) for word in reversed(words)]
    return np.concatenate(stream)


def _decode(payload: np.ndarray, size: int, kept: int) -> np.ndarray:
    if payload.size * POSITIONS_PER_BYTE < size:
        raise ValueError(f"{payload.size} bytes are too few for {size} positions")
    count = _byte_count(size)
    lanes = _lane_count(count)
    if payload.size < 4 * lanes:
        raise ValueError(f"{payload.size} bytes are too few for the lanes' states")
    states = payload[: 4 * lanes].view("<u4").astype(np.uint32)
    words = payload[4 * lanes : payload.size // 2 * 2].view("<u2")
    if states.min() < _LOWEST:
        raise ValueError("the first state of a lane is out of range")

    starts = np.array(frequencies(kept, size), dtype=np.uint32)
    frequency = np.diff(starts)
    value_of = np.repeat(np.arange(256, dtype=np.uint8), frequency)
    share_of = frequency[value_of]
    offset_of = np.arange(_TOTAL, dtype=np.uint32) - starts[value_of]
    packed = np.empty(count, dtype=np.uint8)
    used = 0
    for first in range(0, count, lanes):
        row = packed[first : first + lanes]
        state = states[: row.size]
        slot = state & np.uint32(_TOTAL - 1)
        row[:] = value_of[slot]
        state >>= np.uint32(_TOTAL_BITS)
        state *= share_of[slot]
        state += offset_of[slot]
        low = np.flatnonzero(state < _LOWEST)
        word = words[used : used + low.size]
        used += low.size
        if word.size != low.size:
            raise ValueError("the coded mask ends too early")
        state[low] = state[low] << np.uint32(16) | word
    if (states != _LOWEST).any():
        raise ValueError("a lane does not end in the state it began with")
    coded = payload[: 4 * lanes + 2 * used]
    if not np.array_equal(_pad(coded, size), payload):
        raise ValueError("bytes follow the end of the coded mask")
    return packed
