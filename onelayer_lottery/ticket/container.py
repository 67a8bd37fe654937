"""The container of a ticket: a safetensors file with digests of its content.

It is read and written here, not by the safetensors library, which accepts headers that
this format forbids. docs/ticket-format.md defines it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Dict, Mapping, Tuple

import numpy as np

from onelayer_lottery.errors import quote
from onelayer_lottery.files import whole_file

FORMAT = "onelayer_lottery.ticket"
_MAX_HEADER = 4 << 20
_TABLES = ("payloads", "settings", "frozen", "masks", "tied", "config", "bpe")
# Tables of each version. A file is of the lowest version that has all of its tables.
_VERSIONS = {"1": _TABLES, "2": (*_TABLES, "text")}
_NEWEST = "2"
_DTYPES: Dict[str, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "U8": np.dtype("u1"),
}
_NO_DIGEST = "0" * 64
DIGEST = re.compile(r"[0-9a-f]{64}")


class Refusal(Exception):
    """Why a file is refused; the caller puts the file's name before it."""


def encode_container(tables: Dict[str, Any], payloads: Dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a safetensors file; equal content gives equal bytes."""
    codes = {dtype: (rank, code) for rank, (code, dtype) in enumerate(_DTYPES.items())}
    for name, array in payloads.items():
        payloads[name] = array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        require(array.dtype in codes, f"{quote(name)} is {array.dtype}, not float32")
    entries, digests, data, end = {}, {}, [], 0
    for name in sorted(payloads, key=lambda name: (codes[payloads[name].dtype], name)):
        array = payloads[name]
        data.append(array.tobytes())
        digests[name] = hashlib.sha256(data[-1]).hexdigest()
        entries[name] = {
            "dtype": codes[array.dtype][1],
            "shape": array.shape,
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    # The digest comes first: what follows may itself contain 64 zeros.
    version = _NEWEST if "text" in tables else "1"
    metadata = {"format": FORMAT, "version": version, "sha256": _NO_DIGEST}
    tables = {"payloads": digests, **tables}
    metadata.update((key, _to_json(tables[key])) for key in _VERSIONS[version])
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":"))
    header = text.encode() + b" " * (-len(text) % 8)
    content = b"".join([len(header).to_bytes(8, "little"), header, *data])
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(_NO_DIGEST.encode(), digest.encode(), 1)


def _to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


@dataclass
class Container:
    tables: Dict[str, Any]  # the metadata's JSON
    payloads: Dict[str, np.ndarray]


def open_container(path: Path) -> Container:
    require(path.exists(), "it does not exist")
    require(path.is_file(), "it is not a file")
    with path.open("rb") as file:
        return parse_container(file, os.fstat(file.fileno()).st_size)


def parse_container(file: BinaryIO, size: int) -> Container:
    require(size, "it is empty")
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    header = file.read(min(length, _MAX_HEADER))
    require(length <= _MAX_HEADER and header[:1] == b"{", "it is not a ticket")
    require(len(header) == length, "it is truncated: its header is not complete")
    entries = mapping(_from_json(header, "header"), "header")
    metadata = _metadata(entries.pop("__metadata__", None))
    tables = {
        key: _from_json(metadata[key].encode(), key)
        for key in _VERSIONS[metadata["version"]]
    }
    room = size - 8 - length
    layout = _layout(entries, room)
    data = np.frombuffer(file.read(room), np.uint8)
    require(data.size == room, "it changed while it was read")
    payloads = {
        name: data[start:end].view(dtype).reshape(shape)
        for name, (start, end, dtype, shape) in layout.items()
    }
    stated = mapping(tables["payloads"], "payloads")
    require(
        stated.keys() == payloads.keys(), "its payloads are not those that it states"
    )
    for name, (start, end, _, _) in layout.items():
        require(
            hashlib.sha256(data[start:end]).hexdigest() == stated[name],
            f"payload {quote(name)} is damaged: its digest is not the stated one",
        )
    # Check its form: a shorter text could occur often, and the copy grow without bound.
    require(DIGEST.fullmatch(metadata["sha256"]), "it is damaged: it has no digest")
    digest = metadata["sha256"].encode()
    whole = hashlib.sha256(prefix + header.replace(digest, _NO_DIGEST.encode()))
    whole.update(data)
    require(
        header.count(digest) == 1 and whole.hexdigest() == metadata["sha256"],
        "it is damaged: its digest is not the stated one",
    )
    return Container(tables, payloads)


def _metadata(metadata: Any) -> Dict[str, str]:
    """Check the format and then the version before anything else."""
    require(
        isinstance(metadata, dict) and metadata.get("format") == FORMAT,
        "it is not a ticket but another safetensors file",
    )
    version = metadata.get("version")
    number = isinstance(version, str) and re.fullmatch("[1-9][0-9]{0,8}", version)
    require(
        not number or int(version) <= int(_NEWEST),
        f"it was written by a newer version: format {version}, this reads {_NEWEST};"
        " upgrade onelayer_lottery",
    )
    require(
        isinstance(version, str) and version in _VERSIONS,
        f"its version is {quote(version)}, not one of {', '.join(_VERSIONS)}",
    )
    keys = ("format", "version", "sha256", *_VERSIONS[version])
    return record(metadata, "metadata", dict.fromkeys(keys, (str,)))


def _layout(entries: Dict[str, Any], room: int) -> Dict[str, Tuple]:
    """Return (start, end, dtype, shape) of each payload; there are no gaps."""
    layout = {}
    types: Dict[str, Tuple[type, ...]] = {
        "dtype": (str,),
        "shape": (list,),
        "data_offsets": (list,),
    }
    for name, entry in entries.items():
        what = f"entry of payload {quote(name)}"
        record(entry, what, types)
        shape, offsets = entry["shape"], entry["data_offsets"]
        lowest = 0 if len(shape) == 1 else 1
        require(
            entry["dtype"] in _DTYPES
            and all(type(number) is int for number in shape + offsets)
            and len(offsets) == 2
            and len(shape) <= 8
            and all(length >= lowest for length in shape),
            f"the {what} is malformed",
        )
        dtype = _DTYPES[entry["dtype"]]
        require(
            offsets[1] - offsets[0] == dtype.itemsize * math.prod(shape),
            f"the {what} does not have the length of its shape",
        )
        layout[name] = (*offsets, dtype, tuple(shape))
    position = 0
    for name in sorted(layout, key=lambda name: layout[name][:2]):
        require(layout[name][0] == position, f"{quote(name)} is not where it must be")
        position = layout[name][1]
    state = "truncated" if position > room else "damaged"
    require(position == room, f"it is {state}: {room} bytes of payload, not {position}")
    return layout


def _from_json(text: bytes, what: str) -> Any:
    try:
        value = json.loads(
            text.decode(),
            object_pairs_hook=_without_duplicates,
            parse_int=_short_integer,
            parse_float=_finite,
            parse_constant=_finite,
        )
        json.dumps(value, ensure_ascii=False).encode()  # fails on unpaired surrogates
    except (ValueError, RecursionError):
        raise Refusal(f"it is damaged: its {what} is not valid JSON") from None
    return value


def _without_duplicates(pairs: Any) -> Dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError
    return mapping


def _short_integer(digits: str) -> int:
    if len(digits) > 20:  # the time to parse an integer is quadratic
        raise ValueError
    return int(digits)


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError
    return float(digits)


def mapping(value: Any, what: str) -> Dict[str, Any]:
    require(type(value) is dict, f"its {what} is not a JSON object")
    return value


def record(value: Any, what: str, types: Mapping[str, Tuple[type, ...]]) -> Any:
    """Check that a JSON object has exactly these fields, each of an allowed type."""
    require(
        type(value) is dict
        and value.keys() == types.keys()
        and all(type(value[key]) in types[key] for key in types),
        f"its {what} must have the fields {', '.join(types)}, each of its type",
    )
    return value


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    require(path.name and "\0" not in str(path), "it is not the name of a file")
    with whole_file(path) as file:
        file.write(content)


def require(valid: Any, reason: str) -> None:
    if not valid:
        raise Refusal(reason)
