"""The safetensors format, as far as a folder of Hugging Face needs it."""

from __future__ import annotations

import json
from typing import Any, Dict

import numpy as np


def safetensors(tensors: Dict[str, np.ndarray]) -> bytes:
    """Lay out float32 tensors as a safetensors file."""
    entries: Dict[str, Dict[str, Any]] = {"__metadata__": {"format": "pt"}}
    end = 0
    data = []
    for name in sorted(tensors):
        data.append(np.ascontiguousarray(tensors[name], "<f4").tobytes())
        entries[name] = {
            "dtype": "F32",
            "shape": list(tensors[name].shape),
            "data_offsets": [end, end + len(data[-1])],
        }
        end += len(data[-1])
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, *data])
