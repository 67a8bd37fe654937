"""Masked RoBERTa for sentence pairs and masked language modelling."""

from __future__ import annotations

from typing import ClassVar

from fairseq.models import register_model
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture

from onelayer_lottery.embeddings.into_model import (
    EmbeddingRequest,
    import_embeddings,
    import_positions,
)
from onelayer_lottery.models.planted import PlantedModel
from onelayer_lottery.models.shapes import Shape, register_shape
from onelayer_lottery.planting.presets import PRESETS
from onelayer_lottery.planting.roles import HEADS
from onelayer_lottery.planting.tensor_names import SCORES

_TOKENS = "encoder.sentence_encoder.embed_tokens"
_POSITIONS = "encoder.sentence_encoder.embed_positions"


@register_model("roberta_onelayer_random")
class OnelayerRandomRoberta(PlantedModel, RobertaModel):
    """The stock RoBERTa with frozen random weights under learned masks."""

    stock_arch = "roberta_base"
    stock_architecture = staticmethod(base_architecture)
    stock_flags: ClassVar = {"encoder_embed_path": None}
    sides = ("encoder",)
    presets: ClassVar = {
        **PRESETS,
        "paper": {
            **PRESETS["paper"],
            "mask_init": "normal-0.02",
            "mask_gain": "1.0",
            "mask_train": "positions,head",
        },
    }

    @classmethod
    def add_args(cls, parser) -> None:
        super().add_args(parser)
        parser.add_argument(
            "--encoder-embed-path",
            metavar="FILE",
            help="take token embeddings, and learned positions if it has some, from a"
            " checkpoint; or token embeddings from a text or safetensors file",
        )

    @classmethod
    def imports(cls, args, task, model, config, pending):
        path = getattr(args, "encoder_embed_path", None)
        if not path:
            return {}
        encoder = model.encoder.sentence_encoder
        request = EmbeddingRequest(
            *("--encoder-embed-path", path, "encoder"),
            encoder.embed_tokens,
            task.source_dictionary.symbols,
        )
        matrices = import_embeddings({_TOKENS: request}, config, pending)
        if encoder.embed_positions is not None:
            matrices[_POSITIONS] = import_positions(
                request._replace(layer=encoder.embed_positions),
                config,
                pending,
                name=_POSITIONS,
            )
        return matrices

    def register_classification_head(
        self, name, num_classes=None, inner_dim=None, **kwargs
    ):
        """Register a head as fairseq does, and plant it as the model was."""
        super().register_classification_head(name, num_classes, inner_dim, **kwargs)
        self.plant(
            self.classification_heads[name],
            start=self.head_start,
            prefix=f"{HEADS}{name}.",
        )

    def upgrade_state_dict_named(self, state_dict, name):
        """Add the names of heads' weights while fairseq looks for heads by name."""
        heads = f"{name}.{HEADS}" if name else HEADS
        shown = {
            key[: -len(SCORES)] + ".weight": scores
            for key, scores in state_dict.items()
            if key.startswith(heads) and key.endswith(SCORES)
        }
        state_dict.update(shown)
        super().upgrade_state_dict_named(state_dict, name)
        for key in shown:
            state_dict.pop(key, None)


SHAPES = {
    "tiny": Shape(128, 256, 4, 3),
    "base": Shape(768, 3072, 12, 12),
    "large": Shape(1024, 4096, 16, 24),
}


_MODEL = "roberta_onelayer_random"
for _name, _shape in SHAPES.items():
    for _arch, _share in ((_MODEL, "layers"), ("roberta_random", "none")):
        _defaults = {"mask_share": _share, "mask_train": "head"}
        register_shape(_MODEL, f"{_arch}_{_name}", _shape, **_defaults)
