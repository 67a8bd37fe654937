"""Masked Transformers for translation and their architectures."""

from __future__ import annotations

from typing import ClassVar

from fairseq.models import register_model
from fairseq.models.transformer import TransformerModel, base_architecture

from onelayer_lottery.embeddings import SIDES
from onelayer_lottery.importing import EmbeddingRequest, import_embeddings
from onelayer_lottery.models.planted import PlantedModel
from onelayer_lottery.models.shapes import Shape, register_shape


@register_model("transformer_onelayer_random")
class OnelayerRandomTransformer(PlantedModel, TransformerModel):
    """The stock Transformer with frozen random weights under learned masks."""

    stock_arch = "transformer"
    stock_architecture = staticmethod(base_architecture)
    # From a YAML file, fairseq 0.12.2 would find None in base_layers, and compare.
    stock_flags: ClassVar = {"share_decoder_input_output_embed": True, "base_layers": 0}
    sides = SIDES

    @classmethod
    def build_embedding(cls, args, dictionary, embed_dim, path=None):
        """Leave the import to ``imports``: fairseq reads text files only."""
        return super().build_embedding(args, dictionary, embed_dim)

    @classmethod
    def imports(cls, args, task, model, config):
        requests = {}
        for place, side in enumerate(SIDES):
            path = getattr(args, f"{side}_embed_path", None)
            if path:
                name = "encoder" if args.share_all_embeddings else side
                layer = getattr(model, name).embed_tokens
                symbols = (task.source_dictionary, task.target_dictionary)[place]
                requests.setdefault(
                    f"{name}.embed_tokens",
                    EmbeddingRequest(
                        f"--{side}-embed-path", path, side, layer, symbols.symbols
                    ),
                )
        if not requests:
            return {}
        found = import_embeddings(requests, config, args)
        args.embeddings_inside = True  # with the arguments, into every checkpoint
        return found


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
