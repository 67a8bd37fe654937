"""Every flag of the masks: its meaning, its default, its validation."""

# No "from __future__ import annotations" here: fairseq reads the types at run time.
import math
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, FrozenSet, List, Type, Union

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass

from onelayer_lottery.frozen import FANS, INITS, STREAM_VERSION
from onelayer_lottery.gains import KINDS, gains_text, parse_gains
from onelayer_lottery.modules import SCORE_SIZES

METHODS = ("topk", "signed")
SHARES = ("layers", "none")
SCALES = ("none", "tensor", "row", "row-column")
TRAINABLE = ("norm", "bias", "positions", "embed", "head")
EMBEDS = ("masked", "dense")
EMBED_SIDES = ("own", "encoder", "decoder")

RELEASED = "q=0.5,k=0.5,v=0.5,out=0.70710678"  # sizes in the paper's released code

# Values of other flags by name, or what computes them from the other arguments; a flag
# that is given wins.
Preset = Dict[str, Union[str, float, Callable[[Any], Union[str, float]]]]


def _released_gain(args: Any) -> str:
    """The sizes in the paper's released code, also between stacks of two widths."""
    inputs, width = (
        getattr(args, f"{side}_embed_dim", None) for side in ("encoder", "decoder")
    )
    if None in (inputs, width) or inputs == width:
        return RELEASED
    # There it draws as Xavier says, without a factor.
    keys = math.sqrt(inputs / (inputs + width))
    return f"{RELEASED},cross-q=0.70710678,cross-k={keys:.8g},cross-v={keys:.8g}"


def _released_embed_gain(args: Any) -> float:
    """Its factor on imported embeddings; where it divides by zero, none."""
    dropped = 1 - float(getattr(args, "mask_keep", 0.5))
    return dropped**-0.5 if 0 < dropped < 1 else 1.0


def _gain_by_depth(args: Any) -> str:
    """Branches that shrink as a stack gets deeper; examples/learning has the reason."""
    depths = [getattr(args, f"{side}_layers", 0) for side in ("encoder", "decoder")]
    branch = 0.5 * math.sqrt(3 / max(1, *depths))
    sizes = "".join(f",{kind}={branch:.4g}" for kind in ("v", "out", "fc1", "fc2"))
    return f"q=0.5,k=0.5{sizes}"


_BEST: Preset = {
    "mask_fan": "kept",
    "mask_init": "signed-constant",
    "mask_gain": _gain_by_depth,
    "mask_scores": "width",
    "mask_anneal": 0.8,
}
PRESETS: Dict[str, Preset] = {
    "paper": {
        "mask_gain": _released_gain,
        "mask_embed_gain": _released_embed_gain,
    },
    "paper-text": {"mask_fan": "kept", "mask_gain": "1.0"},
    "best": _BEST,
    "best-from-dense": {**_BEST, "mask_method": "signed", "mask_scale": "row"},
}

# What decides the frozen weights and the masks: a checkpoint fits only a model that
# agrees in all of it.
_IDENTITY = ("keep", "seed", "init", "fan", "gain", "share")


def _as_flag(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')} {value}"


def flag_field(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"help": f"{meaning} (default: {default})"})


@dataclass
class MaskConfig(FairseqDataclass):
    """The flags of a masked model, named as on the command line."""

    mask_preset: ChoiceEnum(tuple(PRESETS)) = flag_field(
        "paper",
        "values for the flags below that are not given. paper: the sizes of frozen"
        " weights in the paper's released code; paper-text: those in its text, with"
        " which nothing was learned; best: the best found since, for every width and"
        " depth; best-from-dense: the same with signed masks and row scales, and a"
        " dense model as --mask-start",
    )
    mask_method: ChoiceEnum(METHODS) = flag_field(
        "topk",
        "what a mask does: it keeps the weights of the largest scores and drops all"
        " others, or (signed) also turns the sign of those whose score is negative",
    )
    mask_keep: float = flag_field(
        0.5, "fraction of the weights of each tensor that its mask keeps, in (0, 1]"
    )
    mask_seed: int = flag_field(
        1,
        "seed of the frozen weights and of the first scores; --seed does not touch"
        " them",
    )
    mask_init: ChoiceEnum(INITS) = flag_field(
        "kaiming-uniform", "distribution of the frozen weights, attention included"
    )
    mask_fan: ChoiceEnum(FANS) = flag_field(
        "full",
        "scale of the frozen weights: for the full number of inputs, or for those that"
        " the mask keeps (times sqrt(1/keep), as the paper's text says)",
    )
    mask_gain: str = flag_field(
        RELEASED,
        "factor on the frozen weights of layers, not on embeddings: one number, or"
        " one for each kind of tensor, such as q=0.5,k=0.5,out=0.7 (kinds: "
        + ", ".join(KINDS)
        + "; those not named have 1)",
    )
    mask_embed_gain: float = flag_field(
        0.0,
        "factor on imported embeddings under a mask; 0: sqrt(1/keep) with --mask-fan"
        " kept, else 1",
    )
    mask_scores: ChoiceEnum(SCORE_SIZES) = flag_field(
        "fan-in",
        "size of the first scores, by which the learning rate is measured: up to"
        " 1/sqrt(inputs), as in the paper, or (width) so that one rate fits every"
        " width: up to sqrt(inputs)/128, of embeddings 1/sqrt(512)",
    )
    mask_share: ChoiceEnum(SHARES) = flag_field(
        "layers",
        "one frozen layer for all layers of a stack, or none shared: each"
        " layer its own",
    )
    mask_train: str = flag_field(
        "none",
        "what is trained densely besides the scores: a comma-separated list of "
        + ", ".join(TRAINABLE)
        + ", or none",
    )
    mask_scale: ChoiceEnum(SCALES) = flag_field(
        "none",
        "learned factors on the masked weights: none, one for each tensor, for each row"
        " (output), or for each row and each column",
    )
    mask_anneal: float = flag_field(
        0.0,
        "part of --max-update, in [0, 1], during which the mask goes from soft (weights"
        " kept in part) to hard; checkpoints and validation always have the hard one",
    )
    mask_start: str = flag_field(
        "",
        "checkpoint of a trained dense model of this shape and these dictionaries, from"
        " which the masks start",
    )
    mask_embed: ChoiceEnum(EMBEDS) = flag_field(
        "masked",
        "imported embeddings are masked like all else (the paper's setting), or dense:"
        " used whole",
    )
    embed_path_side: ChoiceEnum(EMBED_SIDES) = flag_field(
        "own",
        "which embeddings of a checkpoint --encoder-embed-path and --decoder-embed-path"
        " take: those of their own side, or of this one",
    )
    embed_dict: str = flag_field(
        "",
        "dictionary of the imported embeddings, if it is not beside their checkpoint;"
        " two, for encoder and decoder, are separated by a comma",
    )
    embed_missing: float = flag_field(
        0.05, "largest fraction of the task's symbols that imported embeddings may lack"
    )
    trust_checkpoint: bool = flag_field(
        False, "import embeddings also from a checkpoint that may run code when read"
    )

    @property
    def trained(self) -> FrozenSet[str]:
        """The kinds of parameters that are trained densely."""
        return frozenset(_names(self.mask_train)) - {"none"}

    @property
    def signed(self) -> bool:
        """Whether masks turn weights too."""
        return str(self.mask_method) == "signed"

    def identity(self) -> Dict[str, str]:
        """What a checkpoint must agree in, by flag."""
        # A YAML file may have 1 where the command line has 1.0.
        exact = {"keep": float, "gain": gains_text, "seed": int}
        values = {
            f"--mask-{name}": str(exact.get(name, str)(getattr(self, f"mask_{name}")))
            for name in _IDENTITY
        }
        if self.signed:
            values["--mask-method"] = "signed"
        return {**values, "stream": str(STREAM_VERSION)}

    def signature(self) -> str:
        """One line that names everything that decides the model's frozen part."""
        parts = [f"{name}:{getattr(self, f'mask_{name}')}" for name in _IDENTITY]
        if str(self.mask_scores) != "fan-in":
            parts.append(f"scores:{self.mask_scores}")
        if self.signed:
            parts.append("method:signed")
        return "|".join([*parts, f"train:{self.mask_train}"])


def _names(value: Any) -> List[str]:
    """A list as the command line has it, or a YAML file."""
    return value.split(",") if isinstance(value, str) else list(value)


def add_mask_args(parser, config: Type[MaskConfig] = MaskConfig) -> None:
    """Add the flags of a configuration to fairseq's parser.

    Defaults are left out there and filled in by the architecture, as for fairseq's own
    models: an architecture can then have defaults of its own.
    """
    gen_parser_from_dataclass(parser, config(), delete_default=True)


def fill_mask_defaults(
    args: Any,
    config: Type[MaskConfig] = MaskConfig,
    *,
    presets: Dict[str, Preset] = PRESETS,
    **defaults: Any,
) -> None:
    """Set every mask flag that the user did not give, by preset and architecture."""
    chosen = presets.get(str(getattr(args, "mask_preset", "paper")), {})
    for flag in fields(config):
        if not flag.name.startswith("_") and not hasattr(args, flag.name):
            default = chosen.get(flag.name, defaults.get(flag.name, flag.default))
            value = default(args) if callable(default) else default
            setattr(args, flag.name, value)
    # Set when a model has read the files: its checkpoint carries what was in them.
    for inside in ("embeddings_inside", "start_inside"):
        setattr(args, inside, getattr(args, inside, False))


def problems(config: MaskConfig, args: Any) -> List[str]:
    """All that is wrong with the flags, one sentence each."""
    found = [*_value_problems(config)]
    for name, refuse, sentence in _REFUSED:
        value = getattr(args, name, None)
        if value is not None and refuse(value):
            found.append(sentence.format(value=value))
    if config.mask_anneal and getattr(args, "max_update", None) == 0:
        found.append(
            f"--mask-anneal {config.mask_anneal} is a part of --max-update, which is"
            " not given: give both, or --mask-anneal 0"
        )
    started = config.mask_start or getattr(args, "start_inside", False)
    if str(config.mask_preset) == "best-from-dense" and not started:
        found.append(
            "--mask-preset best-from-dense starts from a trained dense model: give its"
            " checkpoint as --mask-start, or --mask-preset best"
        )
    if config.mask_share == "none" and (
        getattr(args, "encoder_layers_to_keep", None)
        or getattr(args, "decoder_layers_to_keep", None)
    ):
        found.append(
            "--encoder-layers-to-keep and --decoder-layers-to-keep renumber the layers,"
            " which decides their frozen weights under --mask-share none: leave them"
            " out"
        )
    # The activation of the classification head: models that have none lack the flag.
    roberta = getattr(args, "pooler_activation_fn", None)
    # RoBERTa's positions are learned: its restored checkpoints do not say so.
    learned = roberta or any(
        getattr(args, f"{side}_learned_pos", False) for side in ("encoder", "decoder")
    )
    if "positions" in config.trained and not learned:
        found.append(
            "--mask-train positions has nothing to train: sinusoidal positions have no"
            " parameters; add --encoder-learned-pos or --decoder-learned-pos"
        )
    if "head" in config.trained and not roberta:
        found.append(
            "--mask-train head has nothing to train: this architecture has no"
            " classification head"
        )
    return [*found, *_embedding_problems(config, args)]


def _embedding_problems(config: MaskConfig, args: Any):
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


def _value_problems(config: MaskConfig):
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
        ("mask_method", METHODS),
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
            yield f"{_as_flag(name, 'is')} {value}; give one of {', '.join(choices)}"
    names = _names(config.mask_train)
    for name in names:
        if name not in (*TRAINABLE, "none"):
            yield (
                f"--mask-train has {name!r}; give none, or a comma-separated list of"
                f" {', '.join(TRAINABLE)}"
            )
    if "none" in names and len(names) > 1:
        yield f"--mask-train is {config.mask_train}; give none or a list, not both"


# Stock flags that cannot work with masks: (name, what value of it, why and what to do).
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
