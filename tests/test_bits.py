"""Masks as bits: exact, small, fast, and safe to decode from a hostile file."""

import hashlib
import math
import time

import numpy as np
import pytest

from onelayer_lottery.ticket import bits
from onelayer_lottery.ticket.bits import (
    POSITIONS_PER_BYTE,
    decode_mask,
    encode_mask,
    frequencies,
    pack,
    unpack,
)


def random_mask(size, keep, seed=0):
    mask = np.zeros(size, dtype=bool)
    kept = round(keep * size)
    mask[np.random.RandomState(seed).permutation(size)[:kept]] = True
    return mask


def entropy_bytes(size, keep):
    return -size * (keep * math.log2(keep) + (1 - keep) * math.log2(1 - keep)) / 8


def decode_as_documented(payload, size, kept):
    """The decoder of docs/ticket-format.md in plain Python, one byte at a time."""
    q = min(max((2 * kept * 4096 + size) // (2 * size), 1), 4095)
    starts = [0]
    weight = 0
    for value in range(256):
        ones = sum(value >> bit & 1 for bit in range(8))
        weight += q**ones * (4096 - q) ** (8 - ones)
        starts.append(16128 * weight // 4096**8 + value + 1)
    value_of = [b for b in range(256) for _ in range(starts[b + 1] - starts[b])]
    count = (size + 7) // 8
    lanes = (count + 511) // 512
    states = [
        int.from_bytes(payload[4 * j : 4 * j + 4], "little") for j in range(lanes)
    ]
    place = 4 * lanes
    packed = []
    for i in range(count):
        state = states[i % lanes]
        slot = state % 16384
        value = value_of[slot]
        packed.append(value)
        state = (
            (starts[value + 1] - starts[value]) * (state // 16384)
            + slot
            - starts[value]
        )
        if state < 65536:
            word = int.from_bytes(payload[place : place + 2], "little")
            state = 65536 * state + word
            place += 2
        states[i % lanes] = state
    assert states == [65536] * lanes
    return np.array(
        [packed[i // 8] >> (i % 8) & 1 for i in range(size)], dtype=bool
    ), place


def test_the_first_position_is_the_lowest_bit_of_the_first_byte():
    mask = np.zeros((2, 6), dtype=bool)
    mask[0, 0] = mask[0, 3] = mask[1, 3] = True
    assert pack(mask).tolist() == [0b00001001, 0b00000010]
    assert np.array_equal(unpack(pack(mask), 12), mask.ravel())


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.03, 0.1, 0.3, 0.5, 0.7, 0.97, 1.0])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 4095, 4096, 4097, 40001])
def test_every_mask_comes_back_exactly(size, keep):
    mask = random_mask(size, keep)
    coding, payload = encode_mask(mask)
    decoded = decode_mask(coding, payload, size=size, kept=round(keep * size))
    assert decoded.dtype == bool
    assert np.array_equal(decoded, mask)
    assert size <= POSITIONS_PER_BYTE * payload.size


@pytest.mark.parametrize("kind", ["sorted", "alternating", "one row"])
def test_a_mask_need_not_be_random(kind):
    mask = np.zeros((100, 300), dtype=bool)
    if kind == "sorted":
        mask.flat[:9000] = True
    elif kind == "alternating":
        mask.flat[::10] = True
    else:
        mask[7] = True
    coding, payload = encode_mask(mask)
    kept = int(mask.sum())
    decoded = decode_mask(coding, payload, size=mask.size, kept=kept)
    assert np.array_equal(decoded, mask.ravel())


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("size", [3000, 12345])
def test_the_coding_is_the_documented_one(size, keep):
    mask = random_mask(size, keep)
    coding, payload = encode_mask(mask)
    assert coding == "ans"
    decoded, length = decode_as_documented(payload.tobytes(), size, int(mask.sum()))
    assert np.array_equal(decoded, mask)
    assert length == payload.size


@pytest.mark.parametrize(("keep", "over"), [(0.3, 1.01), (0.7, 1.01), (0.1, 1.02)])
def test_a_coded_mask_is_hardly_larger_than_its_entropy(keep, over):
    size = 100_000
    coding, payload = encode_mask(random_mask(size, keep))
    assert coding == "ans"
    assert payload.size < over * entropy_bytes(size, keep)


@pytest.mark.parametrize("keep", [0.365, 0.5, 0.635])
def test_bits_stay_where_coding_would_save_less_than_a_twentieth(keep):
    coding, payload = encode_mask(random_mask(100_000, keep))
    assert coding == "bits"
    assert payload.size == 12_500


def test_coding_is_given_up_early_only_where_it_cannot_save():
    for keep in (0.38, 0.62):
        mask = random_mask(100_000, keep)
        packed = pack(mask)
        coded = bits._encode(packed, frequencies(int(mask.sum()), mask.size))
        assert coded.size > 0.95 * packed.size


@pytest.mark.parametrize("keep", [0.0, 0.0001, 1.0])
def test_a_mask_without_information_is_small_but_not_a_bomb(keep):
    size = 100_000
    coding, payload = encode_mask(random_mask(size, keep))
    assert coding == "ans"
    assert payload.size == -(-size // POSITIONS_PER_BYTE)


@pytest.mark.parametrize(
    ("kept", "size"), [(0, 5), (5, 5), (1, 10**9), (3, 10), (10**12, 10**13)]
)
def test_frequencies_cover_all_byte_values_and_sum_up(kept, size):
    starts = frequencies(kept, size)
    assert len(starts) == 257
    assert starts[0] == 0
    assert starts[-1] == 16384
    assert all(low < high for low, high in zip(starts, starts[1:]))
    assert 16128 * 4096**8 < 2**128


def test_the_bytes_of_a_coded_mask_never_change():
    mask = np.arange(30_000) * 7919 % 10_007 < 2500
    coding, payload = encode_mask(mask)
    assert coding == "ans"
    assert (
        hashlib.sha256(payload).hexdigest()[:32] == "86f32d5297eeafae702fd508cc6a5a76"
    )


def test_a_large_mask_is_coded_in_a_fraction_of_a_second():
    mask = np.random.RandomState(1).rand(4_000_000) < 0.3
    start = time.process_time()
    coding, payload = encode_mask(mask)
    decoded = decode_mask(coding, payload, size=mask.size, kept=int(mask.sum()))
    assert time.process_time() - start < 1  # 0.05 s; a loop over bytes takes 5
    assert np.array_equal(decoded, mask)


def coded(size=20_000, keep=0.2):
    mask = random_mask(size, keep)
    coding, payload = encode_mask(mask)
    assert coding == "ans"
    return payload, {"size": size, "kept": int(mask.sum())}


DAMAGE = {
    "ends early": (lambda p: p[:-2], "ends too early"),
    "too short for its lanes": (lambda p: np.full(157, 255, np.uint8), "too early"),
    "longer": (lambda p: np.append(p, [0, 0]).astype(np.uint8), "bytes follow the end"),
    "odd": (lambda p: np.append(p, 0).astype(np.uint8), "bytes follow the end"),
    "no bytes": (lambda p: p[:0], "0 bytes are too few for 20000 positions"),
    "few bytes": (lambda p: p[:156], "156 bytes are too few for 20000 positions"),
    "zero states": (
        lambda p: np.zeros_like(p),
        "first state of a lane is out of range",
    ),
    "other states": (
        lambda p: np.append(p[:2] ^ 1, p[2:]),
        "does not end in the state|ends too early|bytes follow|are kept",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_coded_mask_is_refused(case):
    payload, stated = coded()
    damage, message = DAMAGE[case]
    with pytest.raises(ValueError, match=message):
        decode_mask("ans", damage(payload), **stated)


def test_a_payload_without_all_states_is_refused():
    with pytest.raises(ValueError, match="3 bytes are too few for the lanes' states"):
        decode_mask("ans", np.ones(3, np.uint8), size=100, kept=10)


def test_a_lane_must_end_in_the_state_it_began_with():
    payload, stated = coded()
    reasons = set()
    for bit in range(16):  # of the last word that is read
        flipped = payload.copy()
        flipped[bit // 8 - 2] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=" ") as caught:
            decode_mask("ans", flipped, **stated)
        reasons.add(str(caught.value))
    assert "a lane does not end in the state it began with" in reasons


def test_nearly_every_flipped_bit_of_a_coded_mask_is_noticed():
    payload, stated = coded(size=3000)
    mask = decode_mask("ans", payload, **stated)
    refused = 0
    for bit in range(0, payload.size * 8, 7):
        flipped = payload.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded = decode_mask("ans", flipped, **stated)
        except ValueError:
            refused += 1
        else:
            assert not np.array_equal(decoded, mask)
    assert refused > 0.95 * len(range(0, payload.size * 8, 7))


def test_a_small_payload_that_claims_a_huge_mask_is_refused_before_allocation():
    for coding in ("bits", "ans"):
        with pytest.raises(ValueError, match="1000 bytes"):
            decode_mask(coding, np.ones(1000, np.uint8), size=10**15, kept=10**14)


def test_what_is_not_canonical_in_plain_bits_is_refused():
    packed = pack(np.ones(13, dtype=bool))
    with pytest.raises(ValueError, match="2 bytes were found, 17 positions need 3"):
        decode_mask("bits", packed, size=17, kept=13)
    with pytest.raises(ValueError, match="13 positions are kept, 12 were stated"):
        decode_mask("bits", packed, size=13, kept=12)
    packed[1] |= 0x80
    with pytest.raises(ValueError, match="unused bits of the last byte"):
        decode_mask("bits", packed, size=13, kept=14)
    with pytest.raises(
        ValueError, match="coding 'zip' is unknown; known are bits, ans"
    ):
        decode_mask("zip", packed, size=13, kept=13)
