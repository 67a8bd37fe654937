"""What a stock parameter is: its role, its group, its first or random value."""

from __future__ import annotations

import math
import re
from typing import Optional, Tuple

import torch
from fairseq.models.roberta import RobertaLMHead
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn

from onelayer_lottery.core.frozen import normal
from onelayer_lottery.frozen.gains import gain_of
from onelayer_lottery.frozen.spec import FrozenSpec
from onelayer_lottery.planting.config import MaskConfig

HEADS = "classification_heads."  # prefix of classification heads in fairseq's models

_LAYER = re.compile(r"\blayers\.\d+\b")  # index of a layer in its stack


def role_of(name: str, share: str) -> str:
    """Return the role of a layer: its name, without the layer's index if shared.

    >>> role_of("decoder.layers.3.fc1", "layers")
    'decoder.layers.*.fc1'
    """
    return _LAYER.sub("layers.*", name) if share == "layers" else name


def group_of(module: nn.Module, key: str) -> str | None:
    """Return the group of a stock parameter: mask, norm, bias, positions or none."""
    if isinstance(module, LearnedPositionalEmbedding):
        return "positions"
    if type(module).__name__.endswith("LayerNorm"):
        return "norm"
    if isinstance(module, (nn.Linear, RobertaLMHead)):
        return "mask" if key == "weight" else "bias"
    if isinstance(module, nn.Embedding):
        return "mask"
    return None


def set_first_value(
    parameter: Tensor, *, group: str, module: nn.Module, name: str, seed: int
) -> None:
    """Give a norm, bias or positions its first value, which it keeps if not trained.

    torch's generator is not used: its state depends on the order of construction.
    """
    value = parameter.detach()
    if group == "norm":
        value.fill_(1 if name.endswith("weight") else 0)
    if group == "bias":
        value.zero_()
    if group == "positions":
        std = module.embedding_dim**-0.5
        value.copy_(normal(seed, name, shape=tuple(value.shape), std=std))
        if module.padding_idx is not None:
            value[module.padding_idx] = 0


def is_dense_head(name: str, config: MaskConfig) -> bool:
    """Whether a layer is in a classification head that is trained densely."""
    return name.startswith(HEADS) and "head" in config.trained


def import_scale(config: MaskConfig) -> float:
    """Return the factor on imported embeddings under a mask."""
    if config.mask_embed_gain:
        return config.mask_embed_gain
    return math.sqrt(1 / config.mask_keep) if config.mask_fan == "kept" else 1.0


def frozen_spec(
    name: str,
    shape: Tuple[int, int],
    config: MaskConfig,
    *,
    keep: float,
    padding: Optional[int],
) -> FrozenSpec:
    """Return what decides the random weight of the layer ``name``."""
    return FrozenSpec(
        seed=config.mask_seed,
        role=role_of(name, str(config.mask_share)),
        shape=shape,
        init=str(config.mask_init),
        keep=keep,
        fan=str(config.mask_fan),
        gain=gain_of(name, config.mask_gain),
        padding=padding,
    )


def random_weight(
    name: str, layer: nn.Module, config: MaskConfig, *, keep: float
) -> Tensor:
    """Draw the random weight that replaces a stock layer's."""
    shape, padding = tuple(layer.weight.shape), getattr(layer, "padding_idx", None)
    spec = frozen_spec(name, shape, config, keep=keep, padding=padding)
    return torch.from_numpy(spec.draw())
