"""What the settings of all models of Hugging Face have in common."""

from __future__ import annotations

import json
from typing import Any

from onelayer_lottery.text.dictionary import BOS, EOS, PAD

TARGET = "Hugging Face's transformers"
SPECIAL_TOKENS = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS}

# fairseq's activations that transformers has, by its names.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "tanh": "tanh",
}


def to_json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"
