"""Gains: a factor on the scale of frozen weights for each kind of tensor."""

from __future__ import annotations

import math
import re
from typing import Any, Dict

# What a tensor does in its layer. Those of attention to the encoder have the gain of
# self-attention unless they are given one.
_OF_LAYERS = ("q", "k", "v", "out", "fc1", "fc2")
_CROSS = ("cross-q", "cross-k", "cross-v", "cross-out")
KINDS = (*_OF_LAYERS, *_CROSS, "embed")

_LAYER = re.compile(r"\blayers\.\d+\.")


def parse_gains(value: Any) -> Dict[str, float]:
    """Parse a flag: one number for all layers, or kinds such as q=0.5,out=0.7.

    Kinds that are not named have a gain of 1. Raises ValueError with the reason.
    """
    if not re.search("[=,]", str(value)):
        return dict.fromkeys((*_OF_LAYERS, "other"), _number(value, "is"))
    gains: Dict[str, float] = {}
    for part in str(value).split(","):
        kind, equals, number = part.partition("=")
        if kind not in KINDS or not equals:
            raise ValueError(f"has {part!r}; the kinds are {', '.join(KINDS)}")
        if kind in gains:
            raise ValueError(f"has {kind} twice")
        gains[kind] = _number(number, f"has {kind}")
    return gains


def gains_text(value: Any) -> str:
    """Normalise the flag, so that equal gains have equal text."""
    gains = parse_gains(value)
    if "other" in gains:
        return str(gains["other"])
    return ",".join(f"{kind}={gains[kind]}" for kind in KINDS if kind in gains)


def gain_of(name: str, value: Any) -> float:
    """The gain of a layer's weight, by the name of the layer.

    >>> gain_of("decoder.layers.3.encoder_attn.k_proj", "k=0.5,out=0.7")
    0.5
    """
    gains, kind = parse_gains(value), _kind(name)
    own = kind[len("cross-") :] if kind in _CROSS else kind
    return gains.get(kind, gains.get(own, 1.0))


def _kind(name: str) -> str:
    if not _LAYER.search(name):
        return "embed" if name.endswith("embed_tokens") else "outside"
    last = name.rpartition(".")[2]
    kind = last[: -len("_proj")] if last.endswith("_proj") else last
    if kind not in _OF_LAYERS:
        return "other"
    return f"cross-{kind}" if ".encoder_attn." in name else kind


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{what} {value}; give a number above 0")
    return number
