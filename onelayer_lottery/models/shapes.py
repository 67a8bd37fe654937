"""Register architectures: a shape and default flags under a name of fairseq."""

from __future__ import annotations

from typing import Any, NamedTuple

from fairseq.models import MODEL_REGISTRY, register_model_architecture

from onelayer_lottery.compat import as_namespace
from onelayer_lottery.planting.config import fill_mask_defaults


class Shape(NamedTuple):
    width: int
    ffn: int
    heads: int
    layers: int  # of the encoder, and of the decoder if there is one


def register_shape(model: str, name: str, shape: Shape, **defaults: Any) -> None:
    """Register an architecture of a model with ``defaults`` for its mask flags."""
    model_class = MODEL_REGISTRY[model]
    flags = {
        f"{side}_{part}": value
        for side in model_class.sides
        for part, value in (
            ("embed_dim", shape.width),
            ("ffn_embed_dim", shape.ffn),
            ("attention_heads", shape.heads),
            ("layers", shape.layers),
        )
    }

    def architecture(args: Any) -> None:
        given = as_namespace(args)
        for flag, default in {**flags, **model_class.stock_flags}.items():
            setattr(given, flag, getattr(given, flag, default))
        fill_mask_defaults(
            given, model_class.config_class, presets=model_class.presets, **defaults
        )
        model_class.stock_architecture(given)
        for flag, value in vars(given).items():
            setattr(args, flag, value)

    register_model_architecture(model, name)(architecture)
