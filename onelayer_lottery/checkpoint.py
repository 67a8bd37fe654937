"""Reading and writing fairseq checkpoints, which are pickles and may be hostile."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, ClassVar, Dict, List, Optional

import torch
from torch import Tensor, nn

from onelayer_lottery.checkpoint_types import CHECKPOINT_TYPES
from onelayer_lottery.container import quote
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import whole_file

Checkpoint = Dict[str, Any]
_PICKLES = (b"\2", b"\3", b"\4", b"\5")  # protocols


def is_checkpoint(path: os.PathLike | str) -> bool:
    """Whether a file is one of torch's: a zip archive, or in old ones a pickle."""
    path = Path(path)
    if not path.is_file():
        raise LotteryError(f"{path} is not a file; give a ticket or a checkpoint")
    try:
        with path.open("rb") as file:
            start = file.read(9)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise LotteryError(f"cannot read {path}: {error.strerror}") from None
    # The length of a safetensors header may look like the start of either.
    length = int.from_bytes(start[:8], "little")
    if start[8:] == b"{" and 8 + length <= size:
        return False
    return start[:4] == b"PK\x03\x04" or (
        start[:1] == b"\x80" and start[1:2] in _PICKLES
    )


def load_checkpoint(path: os.PathLike | str, *, trust: bool = False) -> Checkpoint:
    """Read a fairseq checkpoint; unless it is trusted, without running code in it.

    Its model is a plain dictionary of plain tensors, each within its storage and free
    of NaN and infinities.
    """
    path = Path(path)
    if not path.is_file():
        raise LotteryError(f"{path} is not a file; give a fairseq checkpoint (.pt)")
    try:
        _refuse_compression(path)
        state = torch.load(path, map_location="cpu", **_safety(trust))
    except LotteryError:
        raise
    except Exception as error:  # a damaged file fails in any way it likes
        forbidden = re.search(r"GLOBAL (\S+)", str(error))
        raise LotteryError(
            f"{path} refers to {forbidden[1]}, which is not data: it may run code when"
            " read, and was not read"
            if forbidden
            else f"cannot read {path}: it is damaged, or not a fairseq checkpoint"
        ) from None
    if not isinstance(state, dict) or not isinstance(_plain(state).get("model"), dict):
        raise LotteryError(f"{path} is not a fairseq checkpoint: it holds no model")
    state = _plain(state)
    state["model"] = _plain(state["model"])
    for name, tensor in state["model"].items():
        problem = _problem(name, tensor)
        if problem:
            raise LotteryError(f"cannot use {path}: its {quote(name)} {problem}")
        state["model"][name] = tensor.detach()  # a saved parameter wants a gradient
    return state


def save_checkpoint(state: Checkpoint, path: os.PathLike | str, *, force: bool) -> None:
    """Write a checkpoint whole or not at all; an existing file only with ``force``."""
    path = Path(path)
    if path.exists() and not force:
        raise LotteryError(f"{path} exists, pass --force to replace it")
    fault: List[OSError] = []
    try:
        with whole_file(path) as file:
            torch.save(state, _Remembering(file, fault))
    except (OSError, RuntimeError) as error:
        reason = getattr([*fault, error][0], "strerror", None) or error
        raise LotteryError(f"cannot write {path}: {reason}") from None


class _Remembering:
    """A file that remembers what went wrong: torch reports only where it was then."""

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
    """Arguments of torch.load that let it build nothing but data, unless trusted."""
    if hasattr(torch.serialization, "add_safe_globals"):
        return {"weights_only": not trust}
    if trust:
        return {}
    pickle_module = SimpleNamespace(
        Unpickler=_Unpickler, load=_load_data, __name__=__name__
    )
    return {"pickle_module": pickle_module}


class _Unpickler(pickle._Unpickler):
    """For torch older than 2.4, whose own check knows no list of further types."""

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

    dispatch: ClassVar = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


def _load_data(file: Any, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


_DATA = {
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),  # how pickles hold the bytes of a NumPy scalar
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch", "Size"),
}


def _refuse_compression(path: Path) -> None:
    """Refuse an archive that is larger inside: torch writes none that is."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        inside = sum(entry.file_size for entry in archive.infolist())
    if inside > path.stat().st_size:
        raise LotteryError(
            f"cannot read {path}: it is a compressed archive of {inside / 1e6:.0f} MB,"
            " and fairseq's checkpoints are not compressed"
        )


def _plain(values: Dict[Any, Any]) -> Dict[Any, Any]:
    """A dictionary without the attributes that a pickle may give a subclass."""
    return dict(dict.items(values))


def _problem(name: Any, tensor: Any) -> Optional[str]:
    """Why a tensor of a model cannot be used, if so."""
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
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        return "has a NaN or infinity: the training broke down"
    return None
