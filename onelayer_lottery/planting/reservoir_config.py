"""The flags of reservoir models."""

# No "from __future__ import annotations" here: fairseq reads the types at run time.
from dataclasses import dataclass

from fairseq.dataclass import ChoiceEnum

from onelayer_lottery.frozen.reservoirs import ALTERNATING
from onelayer_lottery.frozen.weights import FANS
from onelayer_lottery.planting.config import MaskConfig, flag_field

TYPES = ("transformer", "ffn", "bigru", "cnn")
BACKWARDS = ("exact", "skip")


@dataclass
class ReservoirConfig(MaskConfig):
    """The flags of a model in which some layers stay random."""

    mask_fan: ChoiceEnum(FANS) = flag_field("kept", "scale of masked reservoirs")
    mask_gain: str = flag_field("1.0", "factor on the frozen weights of layers")
    reservoir_layers: str = flag_field(
        ALTERNATING,
        "layers that stay random, counted from 0, such as encoder:1,3/decoder:2;"
        " alternating: layers 1, 3, 5, ... of every side; encoder:alternating: of one"
        " side; none: the stock model",
    )
    reservoir_type: ChoiceEnum(TYPES) = flag_field(
        "transformer",
        "what a reservoir is: a stock layer, a feed-forward block without attention, a"
        " GRU in both directions, or a convolution",
    )
    reservoir_backward: ChoiceEnum(BACKWARDS) = flag_field(
        "exact",
        "compute the gradient through a reservoir, or pass it on unchanged without any"
        " backward computation in the layer (skip)",
    )
    reservoir_mask: str = flag_field(
        "none",
        "reservoirs that get learned masks, to which the mask flags apply: all, none,"
        " or some, named as in --reservoir-layers",
    )

    @property
    def has_masks(self) -> bool:
        return self.reservoir_mask != "none"
