"""Reservoir Transformers: stock models in which some layers stay random."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Dict, FrozenSet, List, Optional

from fairseq.models import register_model
from torch import Tensor, nn

from onelayer_lottery.config import PRESETS
from onelayer_lottery.configuration import DIGEST_KEY
from onelayer_lottery.frozen import digest
from onelayer_lottery.models import roberta, transformer
from onelayer_lottery.models.planted import PlantedModel
from onelayer_lottery.models.shapes import register_shape
from onelayer_lottery.planting import frozen_tensors, plant_reservoirs
from onelayer_lottery.reservoir_config import (
    ALTERNATING,
    ReservoirConfig,
    layers_text,
    masked_layers,
    reservoir_layers,
    reservoir_problems,
)


class ReservoirModel(PlantedModel):
    """Mixed into a model class whose layers are trained, but for some."""

    config_class = ReservoirConfig
    # Layers without a mask are of the size of the stock model's.
    presets: ClassVar = {**PRESETS, "paper": {"mask_fan": "kept", "mask_gain": "1.0"}}
    stacks: ClassVar[Dict[str, str]]  # of each side that --reservoir-layers may name
    misfit_of_stock = (
        "it is not of a reservoir model: its layers are all trained. Give a checkpoint"
        " of a training with these --reservoir flags, or none to start anew"
    )

    @classmethod
    def depths(cls, args: Any) -> Dict[str, int]:
        """The number of layers of each side."""
        return {side: getattr(args, f"{side}_layers") for side in cls.stacks}

    @classmethod
    def problems(cls, config: ReservoirConfig, args: Any) -> List[str]:
        return reservoir_problems(config, args, cls.depths(args))

    @classmethod
    def drawn_layers(cls, args: Any) -> FrozenSet[str]:
        text = getattr(args, "reservoir_layers", ALTERNATING)
        chosen = reservoir_layers(text, cls.depths(args))
        return frozenset(
            f"{cls.stacks[side]}.{index}" for side in chosen for index in chosen[side]
        )

    @classmethod
    def build_model(cls, args: Any, task: Any):
        model = super().build_model(args, task)
        # With the arguments, into every checkpoint: one way to say it.
        args.reservoir_layers = model.mask_config.reservoir_layers
        args.reservoir_mask = model.mask_config.reservoir_mask
        return model

    def identity(self) -> Dict[str, str]:
        """As of every planted model, with a digest of the weights that were drawn."""
        return {**self.mask_config.identity(), DIGEST_KEY: self.frozen_digest}

    def plant(
        self,
        part: nn.Module,
        *,
        imports: Optional[Dict[str, Tensor]] = None,
        start: Optional[Dict[str, Tensor]] = None,
        prefix: str = "",
    ) -> None:
        """Make reservoirs of the layers that were chosen; all else is trained."""
        if prefix:  # a classification head, which comes later
            return
        config = self.mask_config
        depths = {
            side: len(part.get_submodule(stack)) for side, stack in self.stacks.items()
        }
        chosen = reservoir_layers(config.reservoir_layers, depths)
        masked = masked_layers(config.reservoir_mask, chosen, depths)
        config.reservoir_layers = layers_text(chosen)
        config.reservoir_mask = layers_text(masked)
        plant_reservoirs(
            part,
            config,
            {
                f"{self.stacks[side]}.{index}": index in masked[side]
                for side in chosen
                for index in chosen[side]
            },
            imports=imports,
            max_update=self.max_update,
        )
        digests = "".join(map(digest, frozen_tensors(part)))
        self.frozen_digest = hashlib.sha256(digests.encode()).hexdigest()


@register_model("transformer_reservoir")
class ReservoirTransformer(ReservoirModel, transformer.OnelayerRandomTransformer):
    """The stock Transformer with some layers that stay random."""

    stacks: ClassVar = {"encoder": "encoder.layers", "decoder": "decoder.layers"}


@register_model("roberta_reservoir")
class ReservoirRoberta(ReservoirModel, roberta.OnelayerRandomRoberta):
    """The stock RoBERTa with some layers that stay random; heads are trained."""

    stacks: ClassVar = {"encoder": "encoder.sentence_encoder.layers"}


for _family, _model, _names in (
    (transformer, "transformer_reservoir", ("tiny", "small", "base", "deep")),
    (roberta, "roberta_reservoir", ("tiny", "base")),
):
    for _name in _names:
        register_shape(
            _model,
            f"{_model}_{_name}",
            _family.SHAPES[_name],
            mask_share="none",
            mask_init="xavier-uniform",  # as the layers of the stock Transformer start
        )
