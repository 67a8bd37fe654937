"""Every flag of reservoir models: its meaning, its default, its validation."""

# No "from __future__ import annotations" here: fairseq reads the types at run time.
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple

from fairseq.dataclass import ChoiceEnum

from onelayer_lottery.config import MaskConfig, flag_field, problems
from onelayer_lottery.frozen import FANS

TYPES = ("transformer", "ffn", "bigru", "cnn")
BACKWARDS = ("exact", "skip")
ALTERNATING = "alternating"

# Flags of a mask, and those whose work other flags do in these models.
_OF_MASKS = ("method", "keep", "fan", "train", "scale", "anneal", "preset")
_NOT_HERE = ("start", "embed")


class LayersError(ValueError):
    """--reservoir-layers cannot be understood; the sentence says why."""


@dataclass
class ReservoirConfig(MaskConfig):
    """The flags of a model some of whose layers stay random."""

    mask_fan: ChoiceEnum(FANS) = flag_field("kept", "as above; of masked reservoirs")
    mask_gain: str = flag_field("1.0", "factor on the frozen weights of layers")
    reservoir_layers: str = flag_field(
        ALTERNATING,
        "layers that stay random, counted from 0: encoder:1,3/decoder:2; a side's"
        " alternating are its layers 1, 3, 5, ..., alone it means both sides; none",
    )
    reservoir_type: ChoiceEnum(TYPES) = flag_field(
        "transformer",
        "what such a layer is: a stock layer, a feed-forward block without attention, a"
        " GRU in both directions, or a convolution",
    )
    reservoir_backward: ChoiceEnum(BACKWARDS) = flag_field(
        "exact",
        "the gradient goes through such a layer, or skips it: it passes unchanged, and"
        " no backward computation runs in the layer",
    )
    reservoir_mask: str = flag_field(
        "none",
        "which of these layers get learned masks, as --mask-keep and its like say: all,"
        " none, or some, named as in --reservoir-layers",
    )

    @property
    def has_masks(self) -> bool:
        return self.reservoir_mask != "none"

    def identity(self) -> Dict[str, str]:
        """What a checkpoint must agree in: the backward pass is not part of it."""
        values = super().identity()
        if not self.has_masks:
            for name in ("--mask-keep", "--mask-fan"):
                del values[name]
        for name in ("layers", "type", "mask"):
            values[f"--reservoir-{name}"] = str(getattr(self, f"reservoir_{name}"))
        return values

    def signature(self) -> str:
        """One line that names everything that decides the model's frozen part."""
        names = ("layers", "type", "backward", "mask")
        own = [f"{name}:{getattr(self, f'reservoir_{name}')}" for name in names]
        masks = super().signature()
        if not self.has_masks:
            names = ("seed", "init", "gain", "share")
            masks = "|".join(f"{n}:{getattr(self, f'mask_{n}')}" for n in names)
        return f"reservoir {'|'.join(own)}|{masks}"


def reservoir_layers(text: str, depths: Dict[str, int]) -> Dict[str, List[int]]:
    """The indices of the reservoir layers of each side; ``depths`` has all sides.

    >>> reservoir_layers("encoder:0,3/decoder:alternating", dict(encoder=6, decoder=3))
    {'encoder': [0, 3], 'decoder': [1]}
    """
    chosen: Dict[str, List[int]] = {side: [] for side in depths}
    if text == "none":
        return chosen
    if text == ALTERNATING:
        text = "/".join(f"{side}:{ALTERNATING}" for side in depths)
    parts = [part.partition(":") for part in text.split("/")]
    for number, (side, colon, listed) in enumerate(parts):
        if not colon or not listed or side not in depths:
            sides = "/".join(f"{side}:1,3" for side in depths)
            raise LayersError(
                f"has {side + colon + listed!r}; give alternating, none, or layers such"
                f" as {sides}"
            )
        if side in [earlier[0] for earlier in parts[:number]]:
            raise LayersError(f"has {side} twice; give its layers in one list")
        chosen[side] = _indices(side, listed, depths[side])
    return chosen


def masked_layers(
    text: str, chosen: Dict[str, List[int]], depths: Dict[str, int]
) -> Dict[str, List[int]]:
    """The indices of those of the chosen layers that have masks."""
    if text == "all":
        return chosen
    masked = reservoir_layers(text, depths)
    for side, indices in masked.items():
        for index in indices:
            if index not in chosen[side]:
                raise LayersError(
                    f"has {side}:{index}, which is trained and not in"
                    " --reservoir-layers; name reservoirs only, or give all"
                )
    return masked


def layers_text(chosen: Dict[str, List[int]]) -> str:
    """The flag that chooses these layers, each set of them in one way only."""
    parts = [
        f"{side}:{','.join(map(str, sorted(indices)))}"
        for side, indices in chosen.items()
        if indices
    ]
    return "/".join(parts) or "none"


def reservoir_problems(
    config: ReservoirConfig, args: Any, depths: Dict[str, int]
) -> List[str]:
    """All that is wrong with the flags of a reservoir model, one sentence each."""
    found = [*problems(config, args), *_value_problems(config), *_mask_problems(config)]
    for side in depths if str(config.mask_share) == "layers" else ():
        if getattr(args, f"{side}_layers_to_keep", None):
            found.append(
                f"--{side}-layers-to-keep renumbers the layers, which"
                " --reservoir-layers counts: leave it out"
            )
    name = "layers"
    try:
        chosen = reservoir_layers(config.reservoir_layers, depths)
        name = "mask"
        masked = masked_layers(config.reservoir_mask, chosen, depths)
    except LayersError as error:
        return [*found, f"--reservoir-{name} {error}"]
    partly = any(masked.values()) and masked != chosen
    if partly and str(config.mask_share) == "layers":
        found.append(
            f"--reservoir-mask {config.reservoir_mask} with --mask-share layers: frozen"
            " weights under a mask are of another scale than those without; mask all"
            " or none, or give --mask-share none"
        )
    return [*found, *_layer_problems(config, args, depths, chosen)]


def _indices(side: str, listed: str, depth: int) -> List[int]:
    if listed == ALTERNATING:
        return list(range(1, depth, 2))
    indices = []
    for word in listed.split(","):
        if not (word.isascii() and word.isdigit()):
            raise LayersError(
                f"has {word!r} for the {side}; give alternating, or numbers separated"
                " by commas"
            )
        index = int(word)
        if index >= depth:
            raise LayersError(
                f"has {side}:{index}, but the {side} has {depth} layers; they are"
                f" counted from 0 to {depth - 1}"
            )
        if index in indices:
            raise LayersError(f"has {side}:{index} twice; name each layer once")
        indices.append(index)
    return indices


def _value_problems(config: ReservoirConfig) -> Iterator[str]:
    for name, choices in (("type", TYPES), ("backward", BACKWARDS)):
        value = str(getattr(config, f"reservoir_{name}"))
        if value not in choices:
            yield f"--reservoir-{name} is {value}; give one of {', '.join(choices)}"


def _mask_problems(config: ReservoirConfig) -> Iterator[str]:
    def given(names: Tuple[str, ...]) -> str:
        default = ReservoirConfig()
        values = {name: getattr(config, f"mask_{name}") for name in names}
        return ", ".join(
            f"--mask-{name} {value}"
            for name, value in values.items()
            if str(value) != str(getattr(default, f"mask_{name}"))
        )

    foreign = given(_NOT_HERE)
    if foreign:
        yield (
            f"{foreign}: in a reservoir model embeddings and all other layers are"
            " trained, and start as those of the stock model; leave it out"
        )
    idle = given(_OF_MASKS)
    if idle and not config.has_masks:
        yield f"{idle}: there is no mask; add --reservoir-mask all, or leave it out"
    if not config.has_masks:
        return
    if str(config.reservoir_type) in ("bigru", "cnn"):
        yield (
            f"--reservoir-mask is for --reservoir-type transformer and ffn, not for"
            f" {config.reservoir_type}: leave one of them out"
        )
    if str(config.reservoir_backward) == "skip":
        yield (
            "--reservoir-mask with --reservoir-backward skip: masks are learned from"
            " the gradient in their layer, which skip leaves out; give one of them"
        )
    if config.trained & {"positions", "embed", "head"}:
        yield (
            f"--mask-train {config.mask_train}: in a reservoir model embeddings,"
            " positions and heads are trained anyway; give norm, bias or none"
        )


def _layer_problems(
    config: ReservoirConfig,
    args: Any,
    depths: Dict[str, int],
    chosen: Dict[str, List[int]],
) -> Iterator[str]:
    given = f"--reservoir-layers {config.reservoir_layers}"
    kind, backward = str(config.reservoir_type), str(config.reservoir_backward)
    frozen = {side: len(chosen[side]) == depths[side] for side in depths}
    if not any(chosen.values()):
        if config.reservoir_layers != "none":
            sizes = ", ".join(f"{n} of the {side}" for side, n in depths.items())
            yield f"{given} chooses no layer ({sizes}); name some, or give none"
        elif kind != "transformer" or backward != "exact" or config.has_masks:
            yield (
                f"{given}: --reservoir-type, --reservoir-backward and --reservoir-mask"
                " have nothing to act on; leave them out, or name layers"
            )
        return
    if all(frozen.values()) and not config.has_masks:
        yield (
            f"{given} leaves no layer to be trained; leave some out, or train masks"
            " alone with an architecture of the kind onelayer_random"
        )
    elif frozen.get("decoder") and kind in ("ffn", "cnn"):
        yield (
            f"{given} leaves no decoder layer that attends to the encoder, as"
            f" --reservoir-type {kind} does not; leave one of the decoder out"
        )
    elif frozen.get("decoder") and backward == "skip":
        yield (
            f"{given} leaves no decoder layer that passes a gradient to the encoder, as"
            " --reservoir-backward skip does not; leave one of the decoder out"
        )
    if chosen.get("decoder") and kind == "bigru":
        yield (
            f"{given} has layers of the decoder, where --reservoir-type bigru would"
            " look ahead at words that are still to be predicted; give encoder layers"
            " only"
        )
    if kind == "bigru" and getattr(args, "encoder_embed_dim", 2) % 2:
        yield (
            f"--reservoir-type bigru has half of the width in each direction, and"
            f" --encoder-embed-dim is {args.encoder_embed_dim}; give an even number"
        )
