"""Roles: what a stock parameter is, its place in a stack, its random weight."""

from __future__ import annotations

import math
import re

from fairseq.models.roberta import RobertaLMHead
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn

from onelayer_lottery.config import MaskConfig
from onelayer_lottery.frozen import frozen_weight, normal
from onelayer_lottery.gains import gain_of

HEADS = "classification_heads."  # where fairseq's models keep theirs

_LAYER = re.compile(r"\blayers\.\d+\b")  # the place of a layer in its stack


def role_of(name: str, share: str) -> str:
    """The place of a layer inside its stack: its name, the index wildcarded if shared.

    >>> role_of("decoder.layers.3.fc1", "layers")
    'decoder.layers.*.fc1'
    """
    return _LAYER.sub("layers.*", name) if share == "layers" else name


def kind_of(module: nn.Module, key: str) -> str | None:
    """What a stock parameter is: of the kind mask, norm, bias or positions."""
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
    parameter: Tensor, *, kind: str, module: nn.Module, name: str, seed: int
) -> None:
    """Give a norm, bias or positions the value from which it starts, or stays at.

    It never comes from torch's generator, whose state depends on the order of
    construction.
    """
    value = parameter.detach()
    if kind == "norm":
        value.fill_(1 if name.endswith("weight") else 0)
    if kind == "bias":
        value.zero_()
    if kind == "positions":
        std = module.embedding_dim**-0.5
        value.copy_(normal(seed, name, shape=tuple(value.shape), std=std))
        if module.padding_idx is not None:
            value[module.padding_idx] = 0


def is_dense_head(name: str, config: MaskConfig) -> bool:
    """Whether a layer is of a classification head that is trained densely."""
    return name.startswith(HEADS) and "head" in config.trained


def import_scale(config: MaskConfig) -> float:
    """The factor on imported embeddings under a mask, as on random ones."""
    if config.mask_embed_gain:
        return config.mask_embed_gain
    return math.sqrt(1 / config.mask_keep) if config.mask_fan == "kept" else 1.0


def random_weight(
    name: str, layer: nn.Module, config: MaskConfig, *, keep: float
) -> Tensor:
    """Draw the random weight in the place of a stock layer's."""
    return frozen_weight(
        config.mask_seed,
        role_of(name, config.mask_share),
        shape=tuple(layer.weight.shape),
        init=config.mask_init,
        keep=keep,
        fan=config.mask_fan,
        gain=gain_of(name, config.mask_gain),
        padding=getattr(layer, "padding_idx", None),
    )
