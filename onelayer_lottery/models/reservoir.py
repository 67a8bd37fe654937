"""Reservoir Transformers: stock models in which some layers stay random."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Dict, List, Optional

from fairseq.models import register_model
from torch import Tensor, nn

from onelayer_lottery.core.frozen import digest
from onelayer_lottery.frozen.reservoirs import (
    layers_text,
    masked_layers,
    reservoir_layers,
)
from onelayer_lottery.identity import identity_of
from onelayer_lottery.models import language_model, roberta, transformer
from onelayer_lottery.models.planted import PlantedModel
from onelayer_lottery.models.shapes import register_shape
from onelayer_lottery.planting.contents import frozen_tensors
from onelayer_lottery.planting.plant import plant_reservoirs
from onelayer_lottery.planting.presets import PRESETS
from onelayer_lottery.planting.reservoir_config import ReservoirConfig
from onelayer_lottery.planting.reservoir_problems import reservoir_problems


class ReservoirModel(PlantedModel):
    """A mixin for models that are trained, except for some layers that stay random."""

    config_class = ReservoirConfig
    # Weights without a mask have the scale of the stock model's.
    presets: ClassVar = {**PRESETS, "paper": {"mask_fan": "kept", "mask_gain": "1.0"}}
    stacks: ClassVar[Dict[str, str]]  # name of the layers of each side
    misfit_of_stock = (
        "it is not of a reservoir model: its layers are all trained. Give a checkpoint"
        " of a training with these --reservoir flags, or none to start anew"
    )

    @classmethod
    def depths(cls, args: Any) -> Dict[str, int]:
        """Return the number of layers of each side."""
        return {side: getattr(args, f"{side}_layers") for side in cls.stacks}

    @classmethod
    def problems(cls, config: ReservoirConfig, args: Any) -> List[str]:
        return reservoir_problems(config, args, cls.depths(args))

    @classmethod
    def reservoirs(cls, args: Any) -> Dict[str, bool]:
        config, depths = cls.config_class.from_namespace(args), cls.depths(args)
        chosen = reservoir_layers(config.reservoir_layers, depths)
        masked = masked_layers(config.reservoir_mask, chosen, depths)
        return cls._by_name(chosen, masked)

    @classmethod
    def _by_name(
        cls, chosen: Dict[str, List[int]], masked: Dict[str, List[int]]
    ) -> Dict[str, bool]:
        return {
            f"{cls.stacks[side]}.{index}": index in masked[side]
            for side in chosen
            for index in chosen[side]
        }

    @classmethod
    def build_model(cls, args: Any, task: Any):
        model = super().build_model(args, task)
        # fairseq saves the arguments in every checkpoint: name the layers in one way.
        args.reservoir_layers = model.mask_config.reservoir_layers
        args.reservoir_mask = model.mask_config.reservoir_mask
        return model

    def identity(self) -> Dict[str, str]:
        """Return the values that a checkpoint must match, the digest among them."""
        return identity_of(vars(self.mask_config), digest=self.frozen_digest)

    def plant(  # type: ignore[override]  # the options that are passed on
        self,
        part: nn.Module,
        *,
        imports: Optional[Dict[str, Tensor]] = None,
        start: Optional[Dict[str, Tensor]] = None,
        prefix: str = "",
    ) -> None:
        """Turn the chosen layers into reservoirs; everything else is trained."""
        if prefix:  # a classification head, added later and trained
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
            self._by_name(chosen, masked),
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


@register_model("transformer_lm_reservoir")
class ReservoirLanguageModel(
    ReservoirModel, language_model.OnelayerRandomLanguageModel
):
    """The stock language model with some layers that stay random."""

    stacks: ClassVar = {"decoder": "decoder.layers"}


for _family, _model, _names in (
    (transformer, "transformer_reservoir", ("tiny", "small", "base", "deep")),
    (roberta, "roberta_reservoir", ("tiny", "base")),
    (language_model, "transformer_lm_reservoir", ("tiny", "small", "base")),
):
    for _name in _names:
        register_shape(
            _model,
            f"{_model}_{_name}",
            _family.SHAPES[_name],
            mask_share="none",
            mask_init="xavier-uniform",  # as the layers of the stock Transformer start
        )
