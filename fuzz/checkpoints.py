"""Changes of checkpoints: of what they hold, and of the pickle that holds it."""

from __future__ import annotations

import argparse
import copy
import io
import pickletools
import struct
import zipfile
from argparse import Namespace
from collections import OrderedDict
from random import Random
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor

from fuzz.child import MARKER
from fuzz.corpus import Seed
from fuzz.saving import saved
from fuzz.texts import mutate_bytes
from fuzz.values import model_flags, nasty, near, task_flags

_FLAGS = {"model": model_flags(), "task": task_flags()}
_BOMB_BYTES = 700 << 20  # more than the limit of memory
_LARGEST = 10**6  # elements of a tensor that is changed, which may copy it
_GLOBALS = [
    *(
        "argparse Namespace",
        "collections OrderedDict",
        "torch Size",
        "torch FloatStorage",
    ),
    *("torch LongStorage", "torch.FloatStorage x", "torch._utils _rebuild_tensor_v2"),
    *("torch._utils _rebuild_parameter", "torch._utils _rebuild_sparse_tensor"),
    *("torch._utils _rebuild_qtensor", "torch._tensor _rebuild_from_type_v2"),
    *(
        "torch serialization._get_layout",
        "torch.nn.parameter Parameter",
        "torch Tensor",
    ),
    *("numpy dtype", "numpy ndarray", "numpy._core.multiarray scalar"),
    *("numpy._core.multiarray _reconstruct", "numpy.core.multiarray _reconstruct"),
    *(
        "numpy.dtypes Float64DType",
        "_codecs encode",
        "builtins set",
        "builtins bytearray",
    ),
    *("builtins eval", "builtins getattr", "os system", "posix system", "torch load"),
    *("numpy load", "torch.hub load", "runpy run_path", "onelayer_lottery.cli main"),
]


def mutate_checkpoint(chance: Random, seed: Seed) -> Tuple[bytes, str]:
    """Change a checkpoint in its content, its pickle or its bytes."""
    content, action = seed.files[seed.target], chance.random()
    if action < 0.1:
        return mutate_bytes(chance, content)
    if action < 0.45:
        return _mutate_pickles(chance, content)
    if action < 0.453:
        return _bomb(content)
    state = copy.deepcopy(seed.state) or {}
    notes = [
        chance.choices(list(_CHANGES), list(_CHANGES.values()))[0](chance, state)
        for _ in range(chance.choice((1, 1, 1, 2, 3)))
    ]
    zipped = zipfile.is_zipfile(io.BytesIO(content))
    return saved(state, zipped=zipped), "; ".join(notes)


class Hostile:
    """Pickled as a call of a function with arguments, and perhaps a state."""

    def __init__(self, function: Callable, arguments: Tuple, state: Any = None):
        self.parts = (function, arguments, *([] if state is None else [state]))

    def __reduce__(self) -> Tuple:
        return self.parts

    def __repr__(self) -> str:
        return f"{self.parts[0].__name__}{self.parts[1:]}"


def _hostile(chance: Random) -> Any:
    """An object that is made of allowed names, and should not be."""
    dtype = np.dtype(float)
    code = chance.choice(["f8", "O8", "V8", "S0", "U4", "M8", "i4,O", "O", "c16", "x"])
    big = chance.choice([0, 1, -1, 8, 2**31, 10**9, 10**18])
    order = chance.choice(["<", ">", "|", "x", None, 0])
    fields = chance.choice([None, ("a",), 5])
    layout = chance.choice([None, {"a": (dtype, 0)}, {"a": (dtype, big)}, 5])
    base = chance.choice([None, (dtype, (big,)), (dtype, big)])
    dtype_state = (3, order, base, fields, layout, big, chance.choice([-1, 8, big]), 63)
    made = Hostile(np.dtype, (code, False, True), chance.choice([None, dtype_state]))
    scalar, reconstruct = _numpy_functions()
    shape = chance.choice([(3,), (big,), (0,), (-1,), (big, big), "x", ()])
    values = chance.choice(
        [b"", b"12345678", b"1" * 24, [1, 2, 3], [MARKER], None, "x"]
    )
    kind = chance.choice([made, dtype, np.dtype(object), np.dtype("V8"), "f8", None])
    array_state = (
        chance.choice([1, 0, 2**40]),
        shape,
        kind,
        chance.choice([True, 5]),
        values,
    )
    return chance.choice(
        [
            made,
            Hostile(scalar, (kind, values)),
            Hostile(scalar, (dtype,)),
            Hostile(
                reconstruct, (np.ndarray, shape, chance.choice([b"b", b"O", "f8"]))
            ),
            Hostile(reconstruct, (np.ndarray, (0,), b"b"), array_state),
            Hostile(np.ndarray, (shape, chance.choice(["f8", "O", "U9"]))),
            Hostile(argparse.Namespace, (), chance.choice([{"a": 1}, {1: 2}, [1], 5])),
            Hostile(
                OrderedDict, chance.choice([(), (5,), ([(1, 2)],), ([1],)]), {"a": 1}
            ),
            Hostile(torch.Size, (chance.choice([(10**9,), (-1,), "x", 5]),)),
            Hostile(eval, (f"open('{MARKER}', 'w')",)),
        ]
    )


def _numpy_functions() -> Tuple[Callable, Callable]:
    core = np._core if hasattr(np, "_core") else np.core
    return core.multiarray.scalar, core.multiarray._reconstruct


_TENSORS: List[Callable[[Tensor], Any]] = [
    lambda t: t.flatten()[:1].expand(10**6, 10**6),
    lambda t: t.flatten()[:1].expand(10**9),
    lambda t: t.flatten()[:1].expand(3 * 10**4, 10**4),
    lambda t: t.flatten()[:1].expand(t.shape) if t.numel() else t,
    lambda t: t.flatten().as_strided((t.numel(), max(1, t.numel())), (0, 1)),
    lambda t: t.t() if t.dim() == 2 else t,
    lambda t: t.flatten(),
    lambda t: t[None],
    lambda t: t[:0] if t.dim() else t,
    lambda t: t[:-1] if t.dim() else t,
    lambda t: t.flatten()[0] if t.numel() else t,
    lambda t: t.reshape(1, 1, 1, -1),
    lambda t: torch.cat([t.flatten()] * 2),
    lambda t: t.double() * float("nan"),
    lambda t: t.float() * float("inf"),
    lambda t: t.float() * 1e38,
    lambda t: torch.zeros_like(t),
    lambda t: t.half() if t.is_floating_point() else t.float(),
    lambda t: t.bfloat16(),
    lambda t: t.double(),
    lambda t: t.long(),
    lambda t: t > 0,
    lambda t: t.to(torch.complex64),
    lambda t: t.float().to_sparse(),
    lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    lambda t: torch.nn.Parameter(t.float()),
    lambda t: t.to("meta"),
    lambda t: t.long().add(1000),
    lambda t: t.long().neg(),
    lambda t: t.numpy(),
    lambda t: t.tolist(),
    lambda t: [t],
    lambda t: {"weight": t},
    lambda t: None,
    lambda t: 5,
    lambda t: "text",
]


def _change_tensor(chance: Random, state: Dict[str, Any]) -> str:
    tensors = state.get("model")
    if not isinstance(tensors, dict) or not tensors:
        return "nothing"
    name = chance.choice(list(tensors))
    old = tensors[name]
    if not isinstance(old, Tensor) or old.layout != torch.strided or old.is_meta:
        return "nothing"
    if old.is_quantized or old.numel() > _LARGEST:  # an earlier change made it so
        return "nothing"
    tensors[name] = new = chance.choice(_TENSORS)(old)
    return (
        f"model.{name} = {getattr(new, 'dtype', type(new))} {getattr(new, 'shape', '')}"
    )


def _rename_tensor(chance: Random, state: Dict[str, Any]) -> str:
    tensors = state.get("model")
    if not isinstance(tensors, dict) or not tensors:
        return "nothing"
    name, other = (chance.choice(list(tensors)) for _ in range(2))
    new = chance.choice(
        [other, None, 5, b"x", "", "x" * 500, "\x1b[31m", f"{name}.scores"]
    )
    action = chance.choice(("rename", "copy", "drop"))
    value = tensors.pop(name) if action != "copy" else tensors[name]
    if action != "drop":
        tensors[new] = value
    return f"model.{name}: {action} {new!r:.60}"


def _change_flag(chance: Random, state: Dict[str, Any]) -> str:
    part = chance.choice(("model", "task"))
    parts = state.get("cfg")
    holder = parts.get(part) if isinstance(parts, dict) else state.get("args")
    flags = vars(holder) if isinstance(holder, Namespace) else holder
    if not isinstance(flags, dict):
        return "nothing"
    known = chance.random() < 0.6 and flags
    name = chance.choice(list(flags) if known else _FLAGS[part])
    action = chance.random()
    if action < 0.5:
        flags[name] = nasty(chance)
    elif action < 0.75:
        flags[name] = near(chance, flags.get(name))
    elif action < 0.85:
        flags.pop(name, None)
    else:
        flags[name] = _hostile(chance)
    return f"cfg.{part}.{name} = {flags.get(name)!r:.100}"


def _change_part(chance: Random, state: Dict[str, Any]) -> str:
    """Replace a whole part by something else, or by a dictionary of its values."""
    path = chance.choice(
        [
            *(
                ("cfg",),
                ("args",),
                ("model",),
                ("extra_state",),
                ("optimizer_history",),
            ),
            *(("cfg", "model"), ("cfg", "task"), ("extra_state", "best"), ("x",)),
        ]
    )
    holder = state
    for key in path[:-1]:
        holder = holder.get(key)
    if not isinstance(holder, dict):
        return "nothing"
    key = path[-1]
    old, action = holder.get(key), chance.random()
    if action < 0.3 and isinstance(old, Namespace):
        holder[key] = OrderedDict(vars(old))
    elif action < 0.5:
        holder.pop(key, None)
    elif action < 0.75:
        holder[key] = _hostile(chance)
    else:
        holder[key] = nasty(chance)
    return f"{'.'.join(path)} = {type(holder.get(key)).__name__}"


_CHANGES: Dict[Callable[[Random, Dict[str, Any]], str], int] = {
    _change_tensor: 4,
    _rename_tensor: 1,
    _change_flag: 5,
    _change_part: 2,
}


def _mutate_pickles(chance: Random, content: bytes) -> Tuple[bytes, str]:
    """Change operations of the pickle, wherever the file has it."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        # Its first pickles are a magic number, a version and the system's sizes.
        start = content.index(b"\x80\x02}", 20)
        start = content.index(b"\x80\x02}", start + 1)
        stop = start + _pickle_length(content[start:])
        pickled, note = _mutate_operations(chance, content[start:stop])
        return content[:start] + pickled + content[stop:], note
    out, note = io.BytesIO(), ""
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith("/data.pkl"):
                data, note = _mutate_operations(chance, data)
            elif chance.random() < 0.002:
                data, note = mutate_bytes(chance, data)
            new.writestr(entry, data)
    return out.getvalue(), note


def _pickle_length(content: bytes) -> int:
    *_, (_, _, last) = pickletools.genops(content)
    return last + 1


def _mutate_operations(chance: Random, pickled: bytes) -> Tuple[bytes, str]:
    if chance.random() < 0.15:
        return mutate_bytes(chance, pickled)
    operations = list(pickletools.genops(pickled))
    starts = [place for _, _, place in operations] + [len(pickled)]
    codes = [pickled[start:end] for start, end in zip(starts, starts[1:])]
    notes = []
    for _ in range(chance.choice((1, 1, 2, 4))):
        names = [n for n, (op, _, _) in enumerate(operations) if op.name == "GLOBAL"]
        targeted = chance.random() < 0.4 and names
        place = chance.choice(names) if targeted else chance.randrange(len(codes))
        if targeted and chance.random() < 0.5:  # its arguments come after it
            place = min(len(codes) - 1, place + chance.randrange(12))
        operation, argument, _ = operations[place]
        action = chance.random()
        if operation.name == "GLOBAL" and action < 0.8:
            codes[place] = b"c%s\n%s\n" % tuple(
                chance.choice(_GLOBALS).encode().split()
            )
        elif argument is not None and action < 0.7:
            codes[place] = _encoded(chance, argument)
        elif action < 0.8:
            codes[place] = b""
        elif action < 0.9:
            codes[place] = codes[place] * 2
        else:
            codes[place] += chance.choice(
                (
                    b"R",
                    b"b",
                    b"u",
                    b"s",
                    b"0",
                    b"2",
                    b"t",
                    b")",
                    b"}",
                    b"]",
                    b"N",
                    b"Q",
                    b"\x81",
                )
            )
        notes.append(f"{operation.name} {argument!r:.40} is {codes[place]!r:.60}")
    return b"".join(codes), "; ".join(notes)


def _encoded(chance: Random, argument: Any) -> bytes:
    """An operation that pushes another value."""
    value = near(chance, argument) if chance.random() < 0.6 else nasty(chance)
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
    text = str(value).encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(text)) + text


def _bomb(content: bytes) -> Tuple[bytes, str]:
    """A zip archive one tensor of which unpacks to far more than the file's length."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        content = _empty_checkpoint()
    out, bombed = io.BytesIO(), False
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            if "/data/" in entry.filename and not bombed:
                bombed, packed = True, zipfile.ZipInfo(entry.filename)
                packed.compress_type = zipfile.ZIP_DEFLATED
                packed._compresslevel = 1
                with new.open(packed, "w") as file:
                    for _ in range(_BOMB_BYTES >> 20):
                        file.write(bytes(1 << 20))
            else:
                new.writestr(entry, old.read(entry))
    return out.getvalue(), "zip bomb"


def _empty_checkpoint() -> bytes:
    return saved({"model": {"mask_version": torch.zeros(1)}, "cfg": {}}, zipped=True)
