"""Types that a checkpoint may hold besides tensors and containers.

fairseq's checkpoints hold argparse namespaces, and NumPy scalars and arrays of its
meters. NumPy's own constructors trust the state in a pickle and can crash the
interpreter. The types here replace them under the same names: they build scalars and
arrays of basic dtypes and of the right size, and nothing else.
"""

from __future__ import annotations

import argparse
import pickle
from typing import Any, Callable, Dict, Tuple

import numpy as np
import torch

_DTYPES = {
    code: np.dtype(code) for code in "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split()
}
_MULTIARRAYS = ("numpy.core.multiarray", "numpy._core.multiarray")  # NumPy 1 and 2


class Dtype:
    """Replaces numpy.dtype."""

    def __init__(self, code: Any = None, *flags: Any):
        if not isinstance(code, str) or code not in _DTYPES:
            raise pickle.UnpicklingError(f"a NumPy dtype {code!r} is not plain")
        self.value = _DTYPES[code]

    def __setstate__(self, state: Any) -> None:
        """Take the byte order; the rest is the same for every basic dtype."""
        if (
            type(state) is not tuple
            or len(state) != 8
            or state[1] not in ("<", ">", "|", "=")
            or state[2:5] != (None, None, None)
        ):
            raise pickle.UnpicklingError("the state of a NumPy dtype is not plain")
        self.value = self.value.newbyteorder(state[1])


class Array(np.ndarray):
    """Replaces numpy.ndarray."""

    def __new__(cls) -> Array:
        return super().__new__(cls, (0,), np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not (
            type(shape) is tuple
            and all(type(length) is int and length >= 0 for length in shape)
            and len(shape) <= 8
            and type(dtype) is Dtype
            and type(data) is bytes
            and len(data) == dtype.value.itemsize * int(np.prod(shape, dtype=object))
        ):
            raise pickle.UnpicklingError("the state of a NumPy array is not plain")
        whole: Any = (1, shape, dtype.value, fortran is True, data)
        super().__setstate__(whole)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


def _scalar(dtype: Any, data: Any) -> np.generic:
    if (
        type(dtype) is not Dtype
        or type(data) is not bytes
        or len(data) != dtype.value.itemsize
    ):
        raise pickle.UnpicklingError("a NumPy number is not plain")
    return np.frombuffer(data, dtype.value)[0]


def _reconstruct(subtype: Any, shape: Any, code: Any) -> Array:
    return Array()


def _named(constructor: Callable, module: str, name: str) -> Callable:
    """Give a constructor the name under which torch's list of safe types finds it."""
    if not isinstance(constructor, type):
        original = constructor

        def constructor(*arguments: Any) -> Any:
            return original(*arguments)

    constructor.__module__, constructor.__qualname__ = module, name
    return constructor


CHECKPOINT_TYPES: Dict[Tuple[str, str], Callable] = {
    ("argparse", "Namespace"): argparse.Namespace,
    ("numpy", "dtype"): _named(Dtype, "numpy", "dtype"),
    ("numpy", "ndarray"): _named(Array, "numpy", "ndarray"),
    **{
        (module, name): _named(constructor, module, name)
        for module in _MULTIARRAYS
        for name, constructor in (("scalar", _scalar), ("_reconstruct", _reconstruct))
    },
}


def trust_checkpoint_types() -> None:
    """Let torch.load read fairseq's own checkpoints with its safety check on.

    Since torch 2.6 it refuses every type that is not on its list.
    """
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([*CHECKPOINT_TYPES.values()])
