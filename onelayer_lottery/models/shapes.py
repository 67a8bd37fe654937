"""Architectures: a shape and defaults of flags, under the name they have in fairseq."""

from __future__ import annotations

from typing import Any, NamedTuple

from fairseq.models import MODEL_REGISTRY, register_model_architecture

from onelayer_lottery.compat import plain_namespace
from onelayer_lottery.config import fill_mask_defaults


class Shape(NamedTuple):
    width: int
    ffn: int
    heads: int
    layers: int  # of the encoder, and as many of a decoder


def register_shape(model: str, name: str, shape: Shape, **defaults: Any) -> None:
    """Register an architecture of a model; ``defaults`` are of its mask flags."""
    kind = MODEL_REGISTRY[model]
    flags = {
        f"{side}_{part}": value
        for side in kind.sides
        for part, value in (
            ("embed_dim", shape.width),
            ("ffn_embed_dim", shape.ffn),
            ("attention_heads", shape.heads),
            ("layers", shape.layers),
        )
    }

    def architecture(args: Any) -> None:
        given = plain_namespace(args)
        for flag, default in {**flags, **kind.stock_flags}.items():
            setattr(given, flag, getattr(given, flag, default))
        fill_mask_defaults(given, kind.config_class, presets=kind.presets, **defaults)
        kind.stock_architecture(given)
        for flag, value in vars(given).items():
            setattr(args, flag, value)

    register_model_architecture(model, name)(architecture)
