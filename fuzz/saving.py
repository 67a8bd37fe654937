"""Checkpoints as torch saves them, the same bytes for the same content."""

from __future__ import annotations

import io
import pickle
from typing import Any, Dict, Tuple

import torch
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

try:
    from torch.storage import TypedStorage
except ImportError:  # torch 1
    from torch.storage import _TypedStorage as TypedStorage


def saved(state: Any, *, zipped: bool) -> bytes:
    """The content of a checkpoint as a zip archive, or in torch's older form."""
    file = io.BytesIO()
    if zipped:
        torch.save(state, file)
        return file.getvalue()
    # torch.save names the storages of the older form by their addresses in memory.
    system = {"protocol_version": PROTOCOL_VERSION, "little_endian": True}
    for header in (MAGIC_NUMBER, PROTOCOL_VERSION, {**system, "type_sizes": _SIZES}):
        pickle.dump(header, file, protocol=2)
    pickler = _Pickler(file, protocol=2)
    pickler.storages = {}
    pickler.dump(state)
    pickle.dump([key for key, _ in pickler.storages.values()], file, protocol=2)
    for _, storage in pickler.storages.values():
        untyped, size = storage._untyped_storage, storage.dtype.itemsize
        # As an array: bytes(untyped) asks torch for each byte.
        content = torch.tensor([], dtype=torch.uint8).set_(untyped).numpy().tobytes()
        file.write((len(content) // size).to_bytes(8, "little") + content)
    return file.getvalue()


_SIZES = {"short": 2, "int": 4, "long": 4}


class _Pickler(pickle.Pickler):
    storages: Dict[int, Tuple[str, TypedStorage]]  # by address

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, TypedStorage):
            return None
        number = f"{len(self.storages):08}"  # the reader takes them in sorted order
        address = value._untyped_storage._cdata
        key, _ = self.storages.setdefault(address, (number, value))
        kind = getattr(torch, value._pickle_storage_type())
        return ("storage", kind, key, "cpu", value._size(), None)
