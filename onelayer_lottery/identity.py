"""Name a model: the identity that its checkpoints must match, and a one-line signature.

Both are made of the model's flags, a mapping from ``mask_keep`` and the like to values,
wherever these come from: a configuration, a checkpoint or a ticket.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import numpy as np

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.frozen.gains import gains_text
from onelayer_lottery.frozen.weights import STREAM_VERSION

# The identity is stored in a state dict as the character codes of its text. fairseq's
# EMA skips keys that contain "version", and half() leaves integers alone.
IDENTITY_KEY = "mask_version"
DIGEST_KEY = "frozen-sha256"  # digest of the frozen weights of a reservoir model
_MAX_CODES = 1 << 16

# Everything that decides the frozen weights and the masks.
_DECIDING = ("keep", "seed", "init", "fan", "gain", "share")
_DECIDING_WITHOUT_MASKS = ("seed", "init", "gain", "share")


def identity_of(
    flags: Mapping[str, Any], *, digest: Optional[str] = None
) -> Dict[str, str]:
    """Return the values, by flag, in which a checkpoint and a model must agree.

    How a reservoir computes its backward pass is not part of it. ``digest`` is that of
    the frozen weights of a reservoir model.
    """
    # A YAML file may have 1 where the command line has 1.0.
    exact: Dict[str, Callable] = {"keep": float, "gain": gains_text, "seed": int}
    names = _DECIDING if _has_masks(flags) else _DECIDING_WITHOUT_MASKS
    values = {
        f"--mask-{name}": str(exact.get(name, str)(flags[f"mask_{name}"]))
        for name in names
    }
    if _method(flags) != "topk":
        values["--mask-method"] = _method(flags)
    values["stream"] = str(STREAM_VERSION)
    if _is_reservoir(flags):
        for name in ("layers", "type", "mask"):
            values[f"--reservoir-{name}"] = str(flags[f"reservoir_{name}"])
    if digest:
        values[DIGEST_KEY] = digest
    return values


def signature_of(flags: Mapping[str, Any]) -> str:
    """Return one line that names everything that decides the frozen part of a model."""
    parts = []
    if _is_reservoir(flags):
        reservoir = ("layers", "type", "backward", "mask")
        parts += [f"{name}:{flags.get(f'reservoir_{name}')}" for name in reservoir]
        parts[0] = f"reservoir {parts[0]}"
    masked = _has_masks(flags)
    names = _DECIDING if masked else _DECIDING_WITHOUT_MASKS
    parts += [f"{name}:{flags.get(f'mask_{name}')}" for name in names]
    if masked:
        if str(flags.get("mask_scores", "fan-in")) != "fan-in":
            parts.append(f"scores:{flags['mask_scores']}")
        if _method(flags) != "topk":
            parts.append(f"method:{_method(flags)}")
        parts.append(f"train:{flags.get('mask_train')}")
    return "|".join(parts)


def encode_identity(identity: Mapping[str, str]) -> np.ndarray:
    """Encode an identity as the integers that a state dict holds."""
    text = "|".join(f"{flag} {value}" for flag, value in identity.items())
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


def decode_identity(codes: Any) -> Dict[str, str]:
    """Decode the identity in a state dict, a tensor or an array of any content."""
    try:
        parts = bytes(codes.flatten()[:_MAX_CODES].tolist()).decode().split("|")
        return dict(part.split(" ", 1) for part in parts)
    except (TypeError, ValueError):
        raise LotteryError(f"its {IDENTITY_KEY} is damaged") from None


def _method(flags: Mapping[str, Any]) -> str:
    return str(flags.get("mask_method", "topk"))


def _is_reservoir(flags: Mapping[str, Any]) -> bool:
    return "reservoir_layers" in flags


def _has_masks(flags: Mapping[str, Any]) -> bool:
    """Whether a model has masks: a reservoir model may have none."""
    return not _is_reservoir(flags) or flags.get("reservoir_mask", "none") != "none"
