"""Validate the mask flags: one sentence for each problem, all of them together."""

from __future__ import annotations

import math
from typing import Any, Iterator, List

from onelayer_lottery.core.methods import METHODS
from onelayer_lottery.core.modules import SCORE_SIZES
from onelayer_lottery.frozen.gains import parse_gains
from onelayer_lottery.frozen.weights import FANS, INITS
from onelayer_lottery.planting.config import (
    EMBED_SIDES,
    EMBEDS,
    SCALES,
    SHARES,
    TRAINABLE,
    MaskConfig,
    listed,
)
from onelayer_lottery.planting.presets import PRESETS


def problems(config: MaskConfig, args: Any) -> List[str]:
    """Return what is wrong with the flags, one sentence each."""
    sentences = [*_value_problems(config)]
    for name, refuse, sentence in _REFUSED:
        value = getattr(args, name, None)
        if value is not None and refuse(value):
            sentences.append(sentence.format(value=value))
    if config.mask_anneal and getattr(args, "max_update", None) == 0:
        sentences.append(
            f"--mask-anneal {config.mask_anneal} is a part of --max-update, which is"
            " not given: give both, or --mask-anneal 0"
        )
    started = config.mask_start or getattr(args, "start_inside", False)
    if str(config.mask_preset) == "best-from-dense" and not started:
        sentences.append(
            "--mask-preset best-from-dense starts from a trained dense model: give its"
            " checkpoint as --mask-start, or --mask-preset best"
        )
    if config.mask_share == "none" and (
        getattr(args, "encoder_layers_to_keep", None)
        or getattr(args, "decoder_layers_to_keep", None)
    ):
        sentences.append(
            "--encoder-layers-to-keep and --decoder-layers-to-keep renumber the layers,"
            " which decides their frozen weights under --mask-share none: leave them"
            " out"
        )
    # Only models with a classification head have the flag of its activation.
    roberta = getattr(args, "pooler_activation_fn", None)
    # RoBERTa always learns its positions; restored checkpoints lack the flag.
    learned = roberta or any(
        getattr(args, f"{side}_learned_pos", False) for side in ("encoder", "decoder")
    )
    if "positions" in config.trained and not learned:
        sentences.append(
            "--mask-train positions has nothing to train: sinusoidal positions have no"
            " parameters; add --encoder-learned-pos or --decoder-learned-pos"
        )
    if "head" in config.trained and not roberta:
        sentences.append(
            "--mask-train head has nothing to train: this architecture has no"
            " classification head"
        )
    return [*sentences, *_embedding_problems(config, args)]


def _embedding_problems(config: MaskConfig, args: Any) -> Iterator[str]:
    paths = {
        getattr(args, f"{side}_embed_path", None) for side in ("encoder", "decoder")
    } - {None, ""}
    given = [
        flag
        for flag, used in (
            ("--mask-embed dense", config.mask_embed == "dense"),
            ("--embed-path-side", config.embed_path_side != "own"),
            ("--embed-dict", config.embed_dict),
            ("--trust-checkpoint", config.trust_checkpoint),
        )
        if used
    ]
    if given and not paths:
        yield (
            f"{', '.join(given)}: no embeddings are imported; give --encoder-embed-path"
            " or --decoder-embed-path"
        )
    if config.mask_embed == "dense" and "embed" in config.trained:
        yield (
            "--mask-embed dense fixes the embeddings that --mask-train embed trains:"
            " give one of them"
        )
    if getattr(args, "share_all_embeddings", False) and len(paths) > 1:
        yield (
            "--share-all-embeddings has one matrix for both sides: give one of"
            " --encoder-embed-path and --decoder-embed-path"
        )


def _value_problems(config: MaskConfig) -> Iterator[str]:
    if not 0 < config.mask_keep <= 1:
        why = ": no weight would be kept" if config.mask_keep == 0 else ""
        yield f"--mask-keep is {config.mask_keep}{why}; give a fraction in (0, 1]"
    if not 0 <= config.mask_seed < 1 << 63:
        yield (
            f"--mask-seed is {config.mask_seed}; give a whole number from 0 on, below"
            " 2^63"
        )
    try:
        parse_gains(config.mask_gain)
    except ValueError as error:
        yield f"--mask-gain {error}"
    if not 0 <= config.mask_embed_gain < math.inf:
        yield (
            f"--mask-embed-gain is {config.mask_embed_gain}; give a number above 0, or"
            " 0 for the one that goes with --mask-fan"
        )
    if not 0 <= config.mask_anneal <= 1:
        yield (
            f"--mask-anneal is {config.mask_anneal}; give a part of the training in"
            " [0, 1]"
        )
    if not 0 <= config.embed_missing <= 1:
        yield f"--embed-missing is {config.embed_missing}; give a fraction in [0, 1]"
    for name, choices in (
        ("mask_preset", tuple(PRESETS)),
        ("mask_method", tuple(METHODS)),
        ("mask_init", INITS),
        ("mask_fan", FANS),
        ("mask_share", SHARES),
        ("mask_scale", SCALES),
        ("mask_scores", SCORE_SIZES),
        ("mask_embed", EMBEDS),
        ("embed_path_side", EMBED_SIDES),
    ):
        value = str(getattr(config, name))
        if value not in choices:
            flag = name.replace("_", "-")
            yield f"--{flag} is {value}; give one of {', '.join(choices)}"
    names = listed(config.mask_train)
    for name in names:
        if name not in (*TRAINABLE, "none"):
            yield (
                f"--mask-train has {name!r}; give none, or a comma-separated list of"
                f" {', '.join(TRAINABLE)}"
            )
    if "none" in names and len(names) > 1:
        yield f"--mask-train is {config.mask_train}; give none or a list, not both"


# Stock flags that do not work with masks: name, test of its value, sentence.
_REFUSED = (
    (
        "quant_noise_pq",
        lambda value: value > 0,
        "--quant-noise-pq {value} overwrites weights, and frozen weights never change:"
        " leave it out",
    ),
    (
        "quant_noise_scalar",
        lambda value: value > 0,
        "--quant-noise-scalar {value} overwrites weights, and frozen weights never"
        " change: leave it out",
    ),
    (
        "adaptive_softmax_cutoff",
        bool,
        "--adaptive-softmax-cutoff {value} has projections that cannot be masked: leave"
        " it out, and use a criterion that does not need it",
    ),
    (
        "adaptive_input",
        bool,
        "--adaptive-input has embeddings that cannot be masked: leave it out",
    ),
    (
        "character_embeddings",
        bool,
        "--character-embeddings computes embeddings by layers that cannot be masked:"
        " leave it out",
    ),
    *(
        (
            name,
            bool,
            f"--{name.replace('_', '-')} adds factors that cannot be masked or put into"
            " a ticket: leave it out",
        )
        for name in ("scale_fc", "scale_attn", "scale_heads", "scale_resids")
    ),
    (
        "output_dictionary_size",
        lambda value: value >= 0,
        "--output-dictionary-size {value} gives the output fewer symbols than the"
        " embeddings it is tied to: leave it out",
    ),
    *(
        (
            name,
            bool,
            f"--{name.replace('_', '-')} predicts words that the model sees: leave it"
            " out",
        )
        for name in ("self_target", "past_target")
    ),
    (
        "base_layers",
        lambda value: value > 0,
        "--base-layers {value} adds layers that cannot be masked: leave it out",
    ),
    (
        "spectral_norm_classification_head",
        bool,
        "--spectral-norm-classification-head computes the head's weight anew at every"
        " pass, which cannot be masked or put into a ticket: leave it out",
    ),
    (
        "mha_heads_to_keep",
        lambda value: value != -1,
        "--mha-heads-to-keep {value} takes heads away, and frozen weights never change:"
        " leave it out",
    ),
    (
        "ffn_blocks_to_remove",
        lambda value: value != -1,
        "--ffn-blocks-to-remove {value} takes weights away, and frozen weights never"
        " change: leave it out",
    ),
    (
        "ddp_backend",
        lambda value: value == "fully_sharded",
        "--ddp-backend fully_sharded splits the weights that layers share: use c10d or"
        " legacy_ddp",
    ),
    (
        "export",
        bool,
        "--export prepares for TorchScript, which cannot compile masked layers: leave"
        " it out, and export a baked model instead",
    ),
)
