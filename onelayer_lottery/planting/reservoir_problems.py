"""Validate the flags of reservoir models: one sentence for each problem."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

from onelayer_lottery.frozen.reservoirs import (
    LayersError,
    masked_layers,
    reservoir_layers,
)
from onelayer_lottery.planting.problems import problems
from onelayer_lottery.planting.reservoir_config import (
    BACKWARDS,
    TYPES,
    ReservoirConfig,
)

# Flags that only act on masks, and flags that reservoir models do not have.
_OF_MASKS = ("method", "keep", "fan", "train", "scale", "anneal", "preset")
_NOT_HERE = ("start", "embed")


def reservoir_problems(
    config: ReservoirConfig, args: Any, depths: Dict[str, int]
) -> List[str]:
    """Return what is wrong with the flags of a reservoir model, one sentence each."""
    sentences = [
        *problems(config, args),
        *_value_problems(config),
        *_mask_problems(config),
    ]
    for side in depths if str(config.mask_share) == "layers" else ():
        if getattr(args, f"{side}_layers_to_keep", None):
            sentences.append(
                f"--{side}-layers-to-keep renumbers the layers, which"
                " --reservoir-layers counts: leave it out"
            )
    name = "layers"
    try:
        chosen = reservoir_layers(config.reservoir_layers, depths)
        name = "mask"
        masked = masked_layers(config.reservoir_mask, chosen, depths)
    except LayersError as error:
        return [*sentences, f"--reservoir-{name} {error}"]
    partly = any(masked.values()) and masked != chosen
    if partly and str(config.mask_share) == "layers":
        sentences.append(
            f"--reservoir-mask {config.reservoir_mask} with --mask-share layers: frozen"
            " weights under a mask are of another scale than those without; mask all"
            " or none, or give --mask-share none"
        )
    return [*sentences, *_layer_problems(config, args, depths, chosen)]


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
    layer_type, backward = str(config.reservoir_type), str(config.reservoir_backward)
    frozen = {side: len(chosen[side]) == depths[side] for side in depths}
    if not any(chosen.values()):
        if config.reservoir_layers != "none":
            sizes = ", ".join(f"{n} of the {side}" for side, n in depths.items())
            yield f"{given} chooses no layer ({sizes}); name some, or give none"
        elif layer_type != "transformer" or backward != "exact" or config.has_masks:
            yield (
                f"{given}: --reservoir-type, --reservoir-backward and --reservoir-mask"
                " have nothing to act on; leave them out, or name layers"
            )
        return
    if all(frozen.values()) and not config.has_masks:
        yield (
            f"{given} leaves no layer to be trained; leave some out, or use a"
            " onelayer_random architecture, which trains masks alone"
        )
    elif all(frozen.values()) and "encoder" not in depths and layer_type == "ffn":
        yield (
            f"{given} leaves no layer that sees earlier words, as --reservoir-type ffn"
            " does not; leave one out"
        )
    elif "encoder" not in depths:
        pass  # a language model: its layers attend to no encoder
    elif frozen.get("decoder") and layer_type in ("ffn", "cnn"):
        yield (
            f"{given} leaves no decoder layer that attends to the encoder, as"
            f" --reservoir-type {layer_type} does not; leave one of the decoder out"
        )
    elif frozen.get("decoder") and backward == "skip":
        yield (
            f"{given} leaves no decoder layer that passes a gradient to the encoder, as"
            " --reservoir-backward skip does not; leave one of the decoder out"
        )
    if chosen.get("decoder") and layer_type == "bigru":
        remedy = (
            "give encoder layers only"
            if "encoder" in depths
            else "give transformer, ffn or cnn"
        )
        yield (
            f"{given} has layers of the decoder, where --reservoir-type bigru would"
            f" look ahead at words that are still to be predicted; {remedy}"
        )
    if layer_type == "bigru" and getattr(args, "encoder_embed_dim", 2) % 2:
        yield (
            f"--reservoir-type bigru has half of the width in each direction, and"
            f" --encoder-embed-dim is {args.encoder_embed_dim}; give an even number"
        )
