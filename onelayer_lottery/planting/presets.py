"""Presets: values for several mask flags at once, under one name."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Union

RELEASED = "q=0.5,k=0.5,v=0.5,out=0.70710678"  # as in the paper's released code

# Values of other flags by name, or functions that compute them from the arguments. A
# flag that the user gives wins.
Preset = Dict[str, Union[str, float, Callable[[Any], Union[str, float]]]]


def _released_gain(args: Any) -> str:
    """Return the gains of the paper's released code, for stacks of any two widths."""
    inputs, width = (
        getattr(args, f"{side}_embed_dim", None) for side in ("encoder", "decoder")
    )
    if inputs is None or width is None or inputs == width:
        return RELEASED
    # Between two widths the released code uses Xavier's scale without a factor.
    keys = math.sqrt(inputs / (inputs + width))
    return f"{RELEASED},cross-q=0.70710678,cross-k={keys:.8g},cross-v={keys:.8g}"


def _released_embed_gain(args: Any) -> float:
    """Return the released code's factor on imported embeddings, 1 where it has none."""
    dropped = 1 - float(getattr(args, "mask_keep", 0.5))
    return dropped**-0.5 if 0 < dropped < 1 else 1.0


def _gain_by_depth(args: Any) -> str:
    """Return gains that shrink with depth; examples/learning says why."""
    depths = [getattr(args, f"{side}_layers", 0) for side in ("encoder", "decoder")]
    branch = 0.5 * math.sqrt(3 / max(1, *depths))
    sizes = "".join(f",{kind}={branch:.4g}" for kind in ("v", "out", "fc1", "fc2"))
    return f"q=0.5,k=0.5{sizes}"


_BEST: Preset = {
    "mask_fan": "kept",
    "mask_init": "signed-constant",
    "mask_gain": _gain_by_depth,
    "mask_scores": "width",
    "mask_anneal": 0.8,
}
PRESETS: Dict[str, Preset] = {
    "paper": {
        "mask_gain": _released_gain,
        "mask_embed_gain": _released_embed_gain,
    },
    "paper-text": {"mask_fan": "kept", "mask_gain": "1.0"},
    "best": _BEST,
    "best-from-dense": {**_BEST, "mask_method": "signed", "mask_scale": "row"},
}
