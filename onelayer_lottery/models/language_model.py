"""Masked Transformer language models, and their architectures."""

from __future__ import annotations

from typing import ClassVar

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
    base_lm_architecture,
)

from onelayer_lottery.embeddings.into_model import EmbeddingRequest, import_embeddings
from onelayer_lottery.models import transformer
from onelayer_lottery.models.planted import PlantedModel
from onelayer_lottery.models.shapes import register_shape


@register_model("transformer_lm_onelayer_random")
class OnelayerRandomLanguageModel(PlantedModel, TransformerLanguageModel):
    """The stock language model with frozen random weights under learned masks."""

    stock_arch = "transformer_lm"
    # Norms come before each block, as in all language models that fairseq names.
    stock_architecture = staticmethod(base_lm_architecture)
    stock_flags: ClassVar = {
        "share_decoder_input_output_embed": True,
        "decoder_embed_path": None,
        "base_layers": 0,
    }
    sides = ("decoder",)

    @classmethod
    def add_args(cls, parser) -> None:
        # Not registered with its dataclass: fairseq would then ignore the shape of
        # an architecture, or refuse the flags of masks.
        stock = TransformerLanguageModelConfig()
        gen_parser_from_dataclass(parser, stock, delete_default=True)
        super().add_args(parser)
        parser.add_argument(
            "--decoder-embed-path",
            metavar="FILE",
            help="take token embeddings from a checkpoint, a text file or a safetensors"
            " file",
        )

    @classmethod
    def imports(cls, args, task, model, config, pending):
        path = getattr(args, "decoder_embed_path", None)
        if not path:
            return {}
        request = EmbeddingRequest(
            *("--decoder-embed-path", path, "decoder"),
            model.decoder.embed_tokens,
            task.source_dictionary.symbols,
        )
        return import_embeddings({"decoder.embed_tokens": request}, config, pending)


SHAPES = {name: transformer.SHAPES[name] for name in ("tiny", "small", "base")}


_MODEL = "transformer_lm_onelayer_random"
for _name, _shape in SHAPES.items():
    register_shape(_MODEL, f"{_MODEL}_{_name}", _shape, mask_share="layers")
    register_shape(_MODEL, f"transformer_lm_random_{_name}", _shape, mask_share="none")
