"""The configuration in a ticket or checkpoint, checked before fairseq sees it.

fairseq evaluates some flags as Python, opens the files that others name, and loops as
often as others say. A file may therefore set only the flags listed here, each within
its type and range. Strings are choices or match a pattern; none names a file.

This module needs neither torch nor fairseq.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, NamedTuple, Optional

from onelayer_lottery.errors import quote
from onelayer_lottery.frozen.gains import parse_gains
from onelayer_lottery.identity import DIGEST_KEY
from onelayer_lottery.ticket.container import Refusal, mapping, require

IMPORTED = "imported"  # replaces the path of a file whose content is in the ticket
PATHS = ("encoder_embed_path", "decoder_embed_path")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ARCH = re.compile(r"[a-z][a-z0-9_]{0,99}")
LANGUAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_HEAD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LAYERS = re.compile(r"[a-z0-9:,/]{1,20000}")
_INDICES = re.compile(r"[0-9]{1,4}(,[0-9]{1,4}){0,1023}")

_LARGEST = {
    "width": 1 << 16,
    "layers": 1 << 10,
    "positions": 1 << 15,
    "classes": 1 << 16,
}


class Rule(NamedTuple):
    """The values that a flag in a file may have."""

    valid: Callable[[Any], bool]
    expected: str


@dataclass(frozen=True)
class Configuration:
    """What a file says about its model, checked."""

    arch: str
    model: Dict[str, Any]  # flags of the model
    task: Dict[str, Any]  # flags of fairseq's task
    digest: Optional[str]  # of the frozen weights of a reservoir model


def check_configuration(config: Any) -> Configuration:
    """Check the configuration of a ticket; raise ``Refusal`` if it is not allowed."""
    config = mapping(config, "config")
    unknown = set(config) - {"arch", "model", "task", DIGEST_KEY}
    require(
        not unknown,
        f"its config has the unknown key {quote(min(unknown, key=str, default=0))}",
    )
    arch, digest = config.get("arch"), config.get(DIGEST_KEY)
    require(
        type(arch) is str and _ARCH.fullmatch(arch),
        f"its architecture is {quote(arch)}; expected the name of one",
    )
    require(
        digest is None or (type(digest) is str and _DIGEST.fullmatch(digest)),
        f"its {DIGEST_KEY} is {quote(digest)}; expected a digest",
    )
    model = _flags(config.get("model"), "model", MODEL)
    _check_heads(model)
    # The file holds what its model started from: --mask-start is not read again.
    model["start_inside"] = True
    if any(model.get(path) for path in PATHS):
        model["embeddings_inside"] = True
    task = _flags(config.get("task"), "task", TASK)
    return Configuration(arch, model, task, digest)


def _flags(table: Any, part: str, rules: Dict[str, Rule]) -> Dict[str, Any]:
    """Return the flags of a table that have a rule; all others must be off."""
    flags = {}
    for name, value in mapping(table, f"config's {part}").items():
        rule = rules.get(name, _OFF)
        if not rule.valid(value):
            raise Refusal(
                f"its flag {quote(name)} is {quote(value)}; expected {rule.expected}"
            )
        if name in rules and rule is not _UNUSED:
            flags[name] = value
    return flags


def _check_heads(model: Dict[str, Any]) -> None:
    for side in ("encoder", "decoder"):
        heads, width = (
            model.get(f"{side}_{part}") for part in ("attention_heads", "embed_dim")
        )
        require(
            not (heads and width) or width % heads == 0,
            f"its {side} has {heads} attention heads, which do not divide its width"
            f" {width}",
        )


def _whole(lowest: int, highest: int) -> Rule:
    return Rule(
        lambda value: type(value) is int and lowest <= value <= highest,
        f"a whole number from {lowest} to {highest}",
    )


def _number(lowest: float, highest: float = math.inf) -> Rule:
    span = f"from {lowest} to {highest}" if highest < math.inf else f"from {lowest} on"
    return Rule(
        lambda value: (
            type(value) in (int, float)
            and lowest <= value <= highest
            and math.isfinite(value)
        ),
        f"a number {span}",
    )


def _choice(*choices: Any) -> Rule:
    return Rule(
        lambda value: any(type(value) is type(c) and value == c for c in choices),
        f"one of {', '.join(map(str, choices))}",
    )


def _words(*choices: str) -> Rule:
    return Rule(
        lambda value: (
            type(value) is str
            and len(value) < 1000
            and set(value.split(",")) <= set(choices)
        ),
        f"a comma-separated list of {', '.join(choices)}",
    )


def _text(pattern: re.Pattern, expected: str) -> Rule:
    return Rule(
        lambda value: type(value) is str and bool(pattern.fullmatch(value)), expected
    )


def _optional(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.valid(value), rule.expected)


_SWITCH = _choice(True, False)
_FRACTION = _number(0, 1)
_OFF = Rule(
    lambda value: (
        type(value) in (type(None), bool, int, float, str, list) and not value
    ),
    "it to be off: a file may not set it",
)
# These have no effect on the model: any value is allowed, and dropped.
_UNUSED = Rule(lambda value: True, "")
_ACTIVATION = _choice(
    *("relu", "relu_squared", "gelu", "gelu_fast", "gelu_accurate"),
    *("tanh", "linear", "swish"),
)
_POSITIONS = _optional(_whole(1, _LARGEST["positions"]))
_IMPORT = _choice(None, "", IMPORTED)


def _are_gains(value: Any) -> bool:
    if type(value) not in (int, float, str) or len(str(value)) > 1000:
        return False
    try:
        parse_gains(value)
    except ValueError:
        return False
    return True


def _side(side: str) -> Dict[str, Rule]:
    width = _whole(1, _LARGEST["width"])
    rules = {
        "embed_dim": width,
        "ffn_embed_dim": width,
        "input_dim": width,
        "output_dim": width,
        "attention_heads": width,
        "layers": _whole(0, _LARGEST["layers"]),
        "layers_to_keep": _optional(_text(_INDICES, "layer indices such as 0,2,4")),
        "normalize_before": _SWITCH,
        "learned_pos": _SWITCH,
        "layerdrop": _FRACTION,
        "embed_path": _IMPORT,
    }
    return {f"{side}_{name}": rule for name, rule in rules.items()}


MODEL: Dict[str, Rule] = {
    **_side("encoder"),
    **_side("decoder"),
    "activation_fn": _ACTIVATION,
    "pooler_activation_fn": _ACTIVATION,
    "dropout": _FRACTION,
    "attention_dropout": _FRACTION,
    "activation_dropout": _FRACTION,
    "relu_dropout": _FRACTION,
    "pooler_dropout": _FRACTION,
    "max_source_positions": _POSITIONS,
    "max_target_positions": _POSITIONS,
    "max_positions": _POSITIONS,
    "tokens_per_sample": _POSITIONS,
    "share_decoder_input_output_embed": _SWITCH,
    "share_all_embeddings": _SWITCH,
    "untie_weights_roberta": _SWITCH,
    "no_token_positional_embeddings": _SWITCH,
    "no_scale_embedding": _SWITCH,
    "layernorm_embedding": _SWITCH,
    "no_cross_attention": _SWITCH,
    "cross_self_attention": _SWITCH,
    "no_decoder_final_norm": _SWITCH,
    "mha_heads_to_keep": _choice(-1),
    "ffn_blocks_to_remove": _choice(-1),
    "mask_preset": _choice("paper", "paper-text", "best", "best-from-dense"),
    "mask_method": _choice("topk", "signed"),
    "mask_keep": _number(0, 1),
    "mask_seed": _whole(0, (1 << 63) - 1),
    "mask_init": _choice(
        *("kaiming-uniform", "xavier-uniform", "kaiming-normal", "signed-constant"),
        "normal-0.02",
    ),
    "mask_fan": _choice("kept", "full"),
    "mask_gain": Rule(_are_gains, "a number, or kinds such as q=0.5,out=0.7"),
    "mask_embed_gain": _number(0),
    "mask_scores": _choice("fan-in", "width"),
    "mask_share": _choice("layers", "none"),
    "mask_train": _words("none", "norm", "bias", "positions", "embed", "head"),
    "mask_scale": _choice("none", "tensor", "row", "row-column"),
    "mask_anneal": _FRACTION,
    "mask_embed": _choice("masked", "dense"),
    "embed_path_side": _choice("own", "encoder", "decoder"),
    "embed_missing": _FRACTION,
    "embeddings_inside": _SWITCH,
    "start_inside": _SWITCH,
    "reservoir_layers": _text(_LAYERS, "layers such as encoder:1,3/decoder:2"),
    "reservoir_type": _choice("transformer", "ffn", "bigru", "cnn"),
    "reservoir_backward": _choice("exact", "skip"),
    "reservoir_mask": _text(_LAYERS, "layers such as encoder:1,3/decoder:2"),
    **dict.fromkeys(
        (
            *("adaptive_softmax_dropout", "adaptive_softmax_factor"),
            *("quant_noise_pq_block_size", "min_params_to_wrap"),
            *("base_sublayers", "base_shuffle"),
            *("checkpoint_activations", "offload_activations"),
            *("mha_reg_scale_factor", "ffn_reg_scale_factor"),
            # Of character embeddings and adaptive inputs, which must be off.
            *("character_filters", "character_embedding_dim"),
            *("char_embedder_highway_layers", "adaptive_input_factor"),
        ),
        _UNUSED,
    ),
}

# fairseq 0.12.2 stores the two left_pad flags as text.
_TEXT_SWITCH = _choice(True, False, "True", "False")
_TOKEN = _optional(_whole(0, 1 << 24))
TASK: Dict[str, Rule] = {
    "_name": _choice(
        *("translation", "sentence_prediction", "masked_lm", "language_modeling")
    ),
    "source_lang": _optional(_text(LANGUAGE, "the code of a language")),
    "target_lang": _optional(_text(LANGUAGE, "the code of a language")),
    "left_pad_source": _TEXT_SWITCH,
    "left_pad_target": _TEXT_SWITCH,
    "max_source_positions": _POSITIONS,
    "max_target_positions": _POSITIONS,
    "max_positions": _POSITIONS,
    "num_classes": _whole(1, _LARGEST["classes"]),
    "init_token": _TOKEN,
    "separator_token": _TOKEN,
    "classification_head_name": _text(_HEAD, "the name of a head"),
    "regression_target": _SWITCH,
    "shorten_method": _choice("none", "truncate", "random_crop"),
    "no_shuffle": _SWITCH,
    "tokens_per_sample": _POSITIONS,
    "add_bos_token": _SWITCH,
    "sample_break_mode": _choice(None, "none", "complete", "complete_doc", "eos"),
    "mask_prob": _FRACTION,
    "leave_unmasked_prob": _FRACTION,
    "random_token_prob": _FRACTION,
    "freq_weighted_replacement": _SWITCH,
    "mask_whole_words": _SWITCH,
}
