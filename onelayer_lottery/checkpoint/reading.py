"""Read and write fairseq checkpoints, which are pickles and may be hostile."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from argparse import Namespace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, ClassVar, Dict, List, Optional

import torch
from torch import Tensor, nn

from onelayer_lottery.checkpoint.types import CHECKPOINT_TYPES, trust_checkpoint_types
from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.files import whole_file

Checkpoint = Dict[str, Any]

UNSET = "._float_tensor"  # a buffer that fairseq 0.12.2 allocates and never sets

trust_checkpoint_types()  # now, because fairseq has no hook before it loads one


def load_checkpoint(path: os.PathLike | str, *, trust: bool = False) -> Checkpoint:
    """Read a fairseq checkpoint; run no code in it unless ``trust`` is given.

    The model in it is a dictionary of ordinary tensors, each within its storage and
    free of NaN and infinity.
    """
    path = Path(path)
    if not path.is_file():
        raise LotteryError(f"{path} is not a file; give a fairseq checkpoint (.pt)")
    try:
        _refuse_compression(path)
        state = torch.load(path, map_location="cpu", **_safety(trust))
    except LotteryError:
        raise
    except Exception as error:  # a damaged file can raise anything
        forbidden = re.search(r"GLOBAL ([\w.]{1,100})", str(error))
        raise LotteryError(
            f"{path} refers to {forbidden[1]}, which is not data: it may run code when"
            " read, and was not read"
            if forbidden
            else f"cannot read {path}: it is damaged, or not a fairseq checkpoint"
        ) from None
    if not isinstance(state, dict) or not isinstance(
        _without_attributes(state).get("model"), dict
    ):
        raise LotteryError(f"{path} is not a fairseq checkpoint: it holds no model")
    state = _without_attributes(state)
    state["model"] = _without_attributes(state["model"])
    for name, tensor in state["model"].items():
        problem = _problem(name, tensor)
        if problem:
            raise LotteryError(f"cannot use {path}: its {quote(name)} {problem}")
        state["model"][name] = tensor.detach()  # a saved parameter requires a gradient
    return state


def section_of(state: Checkpoint, part: str) -> Dict[str, Any]:
    """Return the flags of a part of a checkpoint's configuration, such as "task".

    A checkpoint has them in cfg or, if it is old, all together in args. Anything else
    there counts as no flags. Values are those of JSON; any other is quoted as text.
    """
    sections = state.get("cfg")
    own = dict.get(sections, part) if isinstance(sections, dict) else None
    for section in (own, state.get("args")):
        values = vars(section) if isinstance(section, Namespace) else section
        if isinstance(values, dict) and values:
            flags = dict(dict.items(values))
            if all(type(name) is str for name in flags):
                return {
                    name: [*map(_json_value, value)]
                    if type(value) is list
                    else _json_value(value)
                    for name, value in flags.items()
                }
    return {}


def save_checkpoint(state: Checkpoint, path: os.PathLike | str, *, force: bool) -> None:
    """Write a checkpoint atomically; replace a file only with ``force``."""
    path = Path(path)
    if path.exists() and not force:
        raise LotteryError(f"{path} exists, pass --force to replace it")
    fault: List[OSError] = []
    try:
        with whole_file(path) as file:
            torch.save(state, _FileWithErrors(file, fault))
    except (OSError, RuntimeError) as error:
        reason = getattr([*fault, error][0], "strerror", None) or error
        raise LotteryError(f"cannot write {path}: {reason}") from None


class _FileWithErrors:
    """A file that keeps its errors: torch reports only its own position."""

    def __init__(self, file: BinaryIO, fault: List[OSError]):
        self._file, self._fault = file, fault

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self._fault.append(error)
            raise

    def flush(self) -> None:
        self._file.flush()


def _safety(trust: bool) -> Dict[str, Any]:
    """Return arguments of torch.load that allow nothing but data, unless trusted."""
    if hasattr(torch.serialization, "add_safe_globals"):
        return {"weights_only": not trust}
    if trust:
        return {}
    pickle_module = SimpleNamespace(
        Unpickler=_Unpickler, load=_load_data, __name__=__name__
    )
    return {"pickle_module": pickle_module}


_Pickle: Any = pickle._Unpickler  # written in Python: its methods can be replaced


class _Unpickler(_Pickle):
    """For torch older than 2.4, whose safety check has no list of further types."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in CHECKPOINT_TYPES:
            return CHECKPOINT_TYPES[module, name]
        if (module, name) in _DATA or (module == "torch" and name.endswith("Storage")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")

    def load_build(self) -> None:
        if isinstance(self.stack[-2], type):
            raise pickle.UnpicklingError("a type cannot be changed")
        super().load_build()

    dispatch: ClassVar = {**_Pickle.dispatch, pickle.BUILD[0]: load_build}


def _load_data(file: Any, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


_DATA = {
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),  # how a pickle stores the bytes of a NumPy scalar
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch", "Size"),
}


def _refuse_compression(path: Path) -> None:
    """Refuse a compressed archive, which could expand to anything."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        inside = sum(entry.file_size for entry in archive.infolist())
    if inside > path.stat().st_size:
        raise LotteryError(
            f"cannot read {path}: it is a compressed archive of {inside / 1e6:.0f} MB,"
            " and fairseq's checkpoints are not compressed"
        )


def _json_value(value: Any) -> Any:
    """Return a flag's value as JSON has it; fairseq has classes for choices."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(value) if isinstance(value, (str, Enum)) else quote(value)


def _without_attributes(values: Dict[Any, Any]) -> Dict[Any, Any]:
    """Return a dictionary without attributes that a pickle may have given to it."""
    return dict(dict.items(values))


def _problem(name: Any, tensor: Any) -> Optional[str]:
    """Return why a tensor of a model cannot be used, or None."""
    if not isinstance(name, str) or type(tensor) not in (Tensor, nn.Parameter):
        return "is not a tensor"
    if (
        tensor.layout != torch.strided
        or tensor.device.type != "cpu"
        or tensor.is_quantized
        or tensor.is_complex()
    ):
        return "is not a plain tensor"
    # torch older than 2.0 has no untyped_storage.
    storage = getattr(tensor, "untyped_storage", tensor.storage)()
    if tensor.numel() * tensor.element_size() > storage.nbytes():
        return f"of shape {tuple(tensor.shape)} is larger than what is stored of it"
    if name.endswith(UNSET):
        return None
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        return "has a NaN or infinity: the training broke down"
    return None
