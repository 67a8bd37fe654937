"""Read embeddings from a safetensors file, which may be hostile."""

from __future__ import annotations

import json
import math
import reprlib
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor

from onelayer_lottery.errors import LotteryError

_MAX_HEADER = 4 << 20  # bytes
_DTYPES: Dict[str, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
}


def read_safetensors(path: Path) -> Tensor:
    """Read the matrix of a safetensors file, which must hold exactly one."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            room = path.stat().st_size - 8 - length
            if room < 0:
                raise ValueError("its header is cut short")
            if length > _MAX_HEADER:
                raise ValueError(
                    f"its header has {length:,} bytes, more than {_MAX_HEADER:,}"
                )
            (start, end), dtype, shape = _layout(_header(file.read(length)), room)
            file.seek(8 + length + start)
            values = np.frombuffer(file.read(end - start), dtype)
            matrix = values.reshape(shape).astype(np.float32)
    except ValueError as error:
        raise LotteryError(f"cannot read {path} as safetensors: {error}") from None
    return torch.from_numpy(matrix)


def _header(text: bytes) -> Dict[str, Any]:
    """Return the entries of a safetensors header, which begins with {."""
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except LotteryError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON") from None
    entries.pop("__metadata__", None)
    return entries


def _without_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    entries: Dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise LotteryError(f"its header has {name[:80]} twice")
        entries[name] = value
    return entries


def _layout(
    entries: Dict[str, Any], room: int
) -> Tuple[List[int], np.dtype, List[int]]:
    """Return where the only matrix is in ``room`` bytes, its type and shape."""
    matrices = {}
    for name, entry in entries.items():
        shown = reprlib.repr(name)[1:-1]
        if not isinstance(entry, dict):
            raise ValueError(
                f"its entry {shown} is {reprlib.repr(entry)}, not an object"
            )
        shape: Any = entry.get("shape")
        if not _are_whole(shape, lowest=1):
            raise ValueError(
                f"the shape of {shown} is {reprlib.repr(shape)}; give whole numbers"
                " from 1 on"
            )
        if len(shape) == 2:
            matrices[shown] = entry
    if len(matrices) != 1:
        raise ValueError(f"it has {len(matrices)} matrices, not one")
    ((name, entry),) = matrices.items()
    shape, code = entry["shape"], entry.get("dtype")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(code, str) or code not in _DTYPES:
        raise ValueError(
            f"the type of {name} is {reprlib.repr(code)}; give {', '.join(_DTYPES)}"
        )
    if (
        not _are_whole(offsets, lowest=0)
        or len(offsets) != 2
        or offsets[0] > offsets[1]
    ):
        raise ValueError(
            f"the offsets of {name} are {reprlib.repr(offsets)}; give where its data"
            " start and end"
        )
    if offsets[1] > room:
        raise ValueError("it is cut short")
    stored = offsets[1] - offsets[0]
    if stored != math.prod(shape) * _DTYPES[code].itemsize:
        raise ValueError(f"{stored:,} bytes do not hold the shape of {name}")
    return offsets, _DTYPES[code], shape


def _are_whole(numbers: Any, *, lowest: int) -> bool:
    """Whether this is a list of integers; True and 1.0 are none."""
    return isinstance(numbers, list) and all(
        type(number) is int and number >= lowest for number in numbers
    )
