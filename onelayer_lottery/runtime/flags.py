"""The flags of a ticket's model, with fairseq's defaults for those it leaves out."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Dict, FrozenSet

from onelayer_lottery.frozen.reservoirs import (
    ALTERNATING,
    LayersError,
    masked_layers,
    reservoir_layers,
)
from onelayer_lottery.ticket.configuration import Configuration
from onelayer_lottery.ticket.format import TicketError

SIDES = {
    "transformer": ("encoder", "decoder"),
    "roberta": ("encoder",),
    "transformer_lm": ("decoder",),
}
STACKS = {
    "transformer": {"encoder": "encoder", "decoder": "decoder"},
    "roberta": {"encoder": "encoder.sentence_encoder"},
    "transformer_lm": {"decoder": "decoder"},
}
_LONGEST = 1024  # fairseq's max_source_positions and max_target_positions

_OFF = (
    *("share_decoder_input_output_embed", "share_all_embeddings"),
    *("no_token_positional_embeddings", "no_cross_attention", "cross_self_attention"),
    *("no_decoder_final_norm", "untie_weights_roberta"),
)
_SIDE_OFF = ("normalize_before", "learned_pos", "layers_to_keep")
_SIZES = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
_ROBERTA = {
    "encoder_learned_pos": True,
    "layernorm_embedding": True,
    "no_scale_embedding": True,
    "activation_fn": "gelu",
    "pooler_activation_fn": "tanh",
}
_TRANSFORMER = {
    "layernorm_embedding": False,
    "no_scale_embedding": False,
    "activation_fn": "relu",
}


def family_of(arch: str) -> str:
    """The stock model that an architecture of this package is planted in."""
    for family in SIDES:
        if arch.startswith(
            (f"{family}_onelayer_random", f"{family}_random", f"{family}_reservoir")
        ):
            return family
    raise TicketError(f"the ticket's architecture {arch} is not known here")


def stock_flags(configuration: Configuration) -> Namespace:
    """The flags of the stock model that computes what the ticket's does.

    Sizes must be given: every ticket has them.
    """
    family = family_of(configuration.arch)
    given = {k: v for k, v in configuration.model.items() if v is not None}
    flags: Dict[str, Any] = dict.fromkeys(_OFF, False)
    flags.update(_ROBERTA if family == "roberta" else _TRANSFORMER)
    for side in SIDES[family]:
        flags.update({f"{side}_{name}": flags.get(f"{side}_{name}") for name in _SIZES})
        flags.update(
            {f"{side}_{n}": flags.get(f"{side}_{n}", False) for n in _SIDE_OFF}
        )
    flags.update(given)
    if family != "transformer":
        flags["share_all_embeddings"] = False  # one side only: fairseq ignores it
    if family == "transformer_lm":
        flags["decoder_normalize_before"] = True  # whatever else is given
        _add_lengths(flags, configuration.task)
    missing = [name for name in flags if flags[name] is None]
    if missing:
        raise TicketError(f"the ticket does not say its {', '.join(missing)}")
    for side in SIDES[family]:
        kept = flags[f"{side}_layers_to_keep"]
        if kept:
            flags[f"{side}_layers"] = len(kept.split(","))
    if family == "roberta":
        positions = flags.get("tokens_per_sample", 512)
        flags["max_source_positions"] = flags.get("max_positions", positions)
    else:
        flags.setdefault("max_source_positions", _LONGEST)
        flags.setdefault("max_target_positions", _LONGEST)
        for end in ("input", "output"):
            flags.setdefault(f"decoder_{end}_dim", flags["decoder_embed_dim"])
        if flags["share_all_embeddings"]:
            flags["share_decoder_input_output_embed"] = True
            if flags.get("encoder_embed_dim") != flags["decoder_embed_dim"]:
                raise TicketError(
                    "the ticket contradicts itself: it shares all embeddings, of the"
                    f" widths {flags['encoder_embed_dim']} and"
                    f" {flags['decoder_embed_dim']}"
                )
    return Namespace(**flags)


def _add_lengths(flags: Dict[str, Any], task: Dict[str, Any]) -> None:
    """Add how many symbols a language model reads, which its task says."""
    for name in ("max_target_positions", "tokens_per_sample"):
        if task.get(name) is not None:
            flags.setdefault("max_target_positions", task[name])


def drawn_layers(configuration: Configuration, flags: Namespace) -> FrozenSet[str]:
    """Names of the reservoir layers, whose weights come from the seed alone."""
    return _layers(configuration, flags, masked=False)


def masked_reservoirs(configuration: Configuration, flags: Namespace) -> FrozenSet[str]:
    """Names of those reservoir layers that have masks."""
    return _layers(configuration, flags, masked=True)


def _layers(
    configuration: Configuration, flags: Namespace, *, masked: bool
) -> FrozenSet[str]:
    family = family_of(configuration.arch)
    if "_reservoir" not in configuration.arch:
        return frozenset()
    stacks = STACKS[family]
    depths = {side: getattr(flags, f"{side}_layers") for side in stacks}
    name = "layers"
    try:
        text = getattr(flags, "reservoir_layers", ALTERNATING)
        chosen = reservoir_layers(text, depths)
        if masked:
            name = "mask"
            text = getattr(flags, "reservoir_mask", "none")
            chosen = masked_layers(text, chosen, depths)
    except LayersError as error:
        raise TicketError(
            f"the ticket contradicts itself: --reservoir-{name} {error}"
        ) from None
    return frozenset(
        f"{stacks[side]}.layers.{index}" for side in chosen for index in chosen[side]
    )
