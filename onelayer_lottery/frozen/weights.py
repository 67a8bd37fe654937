"""Frozen random weights, the same bits on every machine, keyed by (seed, role).

Of NumPy's random module only the integer stream of Philox is used, which NumPy
guarantees not to change. The rest is IEEE arithmetic, one operation at a time, so that
no library version or processor changes a bit.
"""

from __future__ import annotations

import hashlib
import math
from typing import Optional, Tuple

import numpy as np

from onelayer_lottery.frozen.parallel import parallel

# Increase it if the same (seed, role) gives other bits; part of every signature.
STREAM_VERSION = 1

INITS = (
    *("kaiming-uniform", "xavier-uniform", "kaiming-normal", "signed-constant"),
    "normal-0.02",
)
FANS = ("kept", "full")

_RELU_GAIN = math.sqrt(2)
_LN_2 = 0.6931471805599453
_BLOCK = 1 << 16  # values drawn at a time: temporaries fit a core's cache
_PER_COUNT = 8  # 32-bit values for each count of Philox


def frozen_weight(
    seed: int,
    role: str,
    *,
    shape: Tuple[int, int],
    init: str = "kaiming-uniform",
    keep: float = 1.0,
    fan: str = "kept",
    gain: float = 1.0,
    padding: Optional[int] = None,
) -> np.ndarray:
    """Draw the frozen weight of a role, fp32 of shape (out, in), times ``gain``.

    The row of the padding symbol of an embedding is zero.

    Fan "kept" scales the weight by sqrt(1 / keep): a masked sum then has the variance
    that the init gives an unmasked one.
    """
    weight = _weight(seed, role, shape=shape, init=init, keep=keep, fan=fan, gain=gain)
    if padding is not None:
        weight[padding] = 0
    return weight


def uniform(
    seed: int,
    role: str,
    *,
    shape: Tuple[int, ...],
    bound: float,
    out: Optional[np.ndarray] = None,
) -> np.ndarray:
    """Draw from U(-bound, bound), never exactly 0; into ``out`` if it is given."""
    return _draw(_uniform, seed, role, shape, bound, out)


def normal(seed: int, role: str, *, shape: Tuple[int, ...], std: float) -> np.ndarray:
    """Draw from N(0, std^2)."""
    return _draw(_normal, seed, role, shape, std)


def digest(weight: np.ndarray) -> str:
    """SHA-256 of an array's fp32 little-endian bytes."""
    values = weight.astype("<f4", copy=False)
    return hashlib.sha256(np.ascontiguousarray(values)).hexdigest()


def _weight(seed, role, *, shape, init, keep, fan, gain) -> np.ndarray:
    columns = shape[1]
    scale = gain * (math.sqrt(1 / keep) if fan == "kept" else 1.0)
    if init == "xavier-uniform":
        return _draw(_uniform, seed, role, shape, scale * math.sqrt(6 / sum(shape)))
    std = scale * _RELU_GAIN / math.sqrt(columns)
    if init == "kaiming-uniform":
        return _draw(_uniform, seed, role, shape, std * math.sqrt(3))
    if init == "normal-0.02":
        return _draw(_normal, seed, role, shape, scale * 0.02)
    if init == "kaiming-normal":
        return _draw(_normal, seed, role, shape, std)
    if init == "signed-constant":
        return _draw(_sign, seed, role, shape, std)
    raise ValueError(f"unknown init {init!r}: expected one of {', '.join(INITS)}")


def _draw(distribution, seed, role, shape, scale, out=None) -> np.ndarray:
    if out is None:
        out = np.empty(shape, np.float32)
    digest = hashlib.sha256(f"{seed}/{role}".encode()).digest()[:16]
    key = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    values = out.reshape(-1)  # a view: ``out`` is contiguous

    def fill(start: int) -> None:
        stream = np.random.Philox(key=key, counter=start // _PER_COUNT)
        block = values[start : start + _BLOCK]
        raw = stream.random_raw((block.size + 1) // 2).astype("<u8", copy=False)
        values_of = distribution(raw.view("<u4")[: block.size])
        with np.errstate(over="ignore", invalid="ignore"):  # a hostile gain
            np.multiply(values_of, np.float32(scale), out=block)

    parallel(fill, range(0, values.size, _BLOCK))
    return out


def _uniform(bits: np.ndarray) -> np.ndarray:
    """Map 32 random bits to the odd multiples of 2^-23 in (-1, 1), exact in fp32."""
    odd = (bits >> np.uint32(9)).view(np.int32)
    odd *= 2
    odd += 1 - (1 << 23)
    return odd.astype(np.float32) * np.float32(2.0**-23)


def _sign(bits: np.ndarray) -> np.ndarray:
    return np.where(bits >> np.uint32(31), np.float32(1), np.float32(-1))


def _normal(bits: np.ndarray) -> np.ndarray:
    """Map 32 random bits to standard normal values by the inverse distribution.

    Uses Acklam's rational approximation, relative error below 1.2e-9. Its tails need a
    logarithm; those of mathematical libraries differ, hence ``_log``.
    """
    probability = (bits.astype(np.float64) + 0.5) * 2.0**-32
    offset = probability - 0.5
    square = offset * offset
    value = _polynomial(_CENTRE_TOP, square) * offset / _polynomial(_CENTRE_LOW, square)
    tail = np.minimum(probability, 1 - probability)
    far = tail < 0.02425
    depth = np.sqrt(-2 * _log(tail[far]))
    outer = -_polynomial(_TAIL_TOP, depth) / _polynomial(_TAIL_LOW, depth)
    value[far] = np.copysign(outer, offset[far])
    return value.astype(np.float32)


def _log(x: np.ndarray) -> np.ndarray:
    """Natural logarithm from IEEE basic operations only."""
    mantissa, exponent = np.frexp(x)  # x = mantissa * 2^exponent, mantissa in [0.5, 1)
    ratio = (mantissa - 1) / (mantissa + 1)
    series = _polynomial([1 / (2 * n + 1) for n in range(20, -1, -1)], ratio * ratio)
    return 2 * ratio * series + exponent * _LN_2


def _polynomial(coefficients, x: np.ndarray) -> np.ndarray:
    """Evaluate a polynomial, highest power first, one rounding per operation."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


_CENTRE_TOP = (
    -3.969683028665376e01,
    2.209460984245205e02,
    -2.759285104469687e02,
    1.383577518672690e02,
    -3.066479806614716e01,
    2.506628277459239e00,
)
_CENTRE_LOW = (
    -5.447609879822406e01,
    1.615858368580409e02,
    -1.556989798598866e02,
    6.680131188771972e01,
    -1.328068155288572e01,
    1.0,
)
_TAIL_TOP = (
    -7.784894002430293e-03,
    -3.223964580411365e-01,
    -2.400758277161838e00,
    -2.549732539343734e00,
    4.374664141464968e00,
    2.938163982698783e00,
)
_TAIL_LOW = (
    7.784695709041462e-03,
    3.224671290700398e-01,
    2.445134137142996e00,
    3.754408661907416e00,
    1.0,
)
