"""Masked Transformers for translation, and their architectures."""

from __future__ import annotations

from typing import ClassVar, Dict

from fairseq.models import register_model
from fairseq.models.transformer import TransformerModel, base_architecture

from onelayer_lottery.embeddings.checkpoint_file import SIDES
from onelayer_lottery.embeddings.into_model import EmbeddingRequest, import_embeddings
from onelayer_lottery.models.planted import PlantedModel
from onelayer_lottery.models.shapes import Shape, register_shape


@register_model("transformer_onelayer_random")
class OnelayerRandomTransformer(PlantedModel, TransformerModel):
    """The stock Transformer with frozen random weights under learned masks."""

    stock_arch = "transformer"
    stock_architecture = staticmethod(base_architecture)
    # With a YAML file, fairseq 0.12.2 would compare a base_layers of None.
    stock_flags: ClassVar = {"share_decoder_input_output_embed": True, "base_layers": 0}
    sides = SIDES

    @classmethod
    def build_embedding(cls, args, dictionary, embed_dim, path=None):
        """Do not read ``path``, as fairseq would: ``imports`` reads more formats."""
        return super().build_embedding(args, dictionary, embed_dim)

    @classmethod
    def imports(cls, args, task, model, config, pending):
        requests: Dict[str, EmbeddingRequest] = {}
        for index, side in enumerate(SIDES):
            path = getattr(args, f"{side}_embed_path", None)
            if path:
                name = "encoder" if args.share_all_embeddings else side
                layer = getattr(model, name).embed_tokens
                symbols = (task.source_dictionary, task.target_dictionary)[index]
                requests.setdefault(
                    f"{name}.embed_tokens",
                    EmbeddingRequest(
                        f"--{side}-embed-path", path, side, layer, symbols.symbols
                    ),
                )
        return import_embeddings(requests, config, pending)


SHAPES = {
    "tiny": Shape(128, 256, 4, 3),
    "small": Shape(512, 1024, 4, 6),
    "wide": Shape(1024, 2048, 4, 6),
    "deep": Shape(512, 1024, 4, 12),
    "base": Shape(512, 2048, 8, 6),
    "wider": Shape(1024, 4096, 16, 6),
    "deeper": Shape(512, 2048, 8, 12),
}


_MODEL = "transformer_onelayer_random"
for _name, _shape in SHAPES.items():
    register_shape(_MODEL, f"{_MODEL}_{_name}", _shape, mask_share="layers")
    register_shape(_MODEL, f"transformer_random_{_name}", _shape, mask_share="none")
