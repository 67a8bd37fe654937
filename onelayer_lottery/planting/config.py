"""The mask flags: their names, meanings and defaults."""

# No "from __future__ import annotations" here: fairseq reads the types at run time.
from dataclasses import dataclass, field, fields
from typing import Any, Dict, FrozenSet, List, Type

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass

from onelayer_lottery.core.methods import METHODS
from onelayer_lottery.core.modules import SCORE_SIZES
from onelayer_lottery.frozen.gains import KINDS
from onelayer_lottery.frozen.weights import FANS, INITS
from onelayer_lottery.planting.presets import PRESETS, RELEASED, Preset

SHARES = ("layers", "none")
SCALES = ("none", "tensor", "row", "row-column")
TRAINABLE = ("norm", "bias", "positions", "embed", "head")
EMBEDS = ("masked", "dense")
EMBED_SIDES = ("own", "encoder", "decoder")


def flag_field(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"help": f"{meaning} (default: {default})"})


@dataclass
class MaskConfig(FairseqDataclass):
    """The flags of a masked model, named as on the command line."""

    mask_preset: ChoiceEnum(tuple(PRESETS)) = flag_field(
        "paper",
        "defaults for the flags below. paper: the sizes of frozen weights in the"
        " paper's released code; paper-text: the sizes in its text, with which nothing"
        " was learned; best: what learned best at every width and depth;"
        " best-from-dense: the same with signed masks and row scales, for a model that"
        " starts from a dense one (--mask-start)",
    )
    mask_method: str = flag_field(
        "topk",
        "what a mask does: it keeps the weights of the largest scores and drops all"
        " others, or (signed) also flips the sign of those whose score is negative",
    )
    mask_keep: float = flag_field(
        0.5, "fraction of the weights of each tensor that its mask keeps, in (0, 1]"
    )
    mask_seed: int = flag_field(
        1,
        "seed of the frozen weights and of the first scores; independent of --seed",
    )
    mask_init: ChoiceEnum(INITS) = flag_field(
        "kaiming-uniform", "distribution of the frozen weights, including attention"
    )
    mask_fan: ChoiceEnum(FANS) = flag_field(
        "full",
        "scale the frozen weights for the full number of inputs, or for those that the"
        " mask keeps (times sqrt(1/keep), as in the paper's text)",
    )
    mask_gain: str = flag_field(
        RELEASED,
        "factor on the frozen weights of layers, not on embeddings: one number, or"
        " one for each kind of tensor, such as q=0.5,k=0.5,out=0.7 (kinds: "
        + ", ".join(KINDS)
        + "; kinds that are not named have 1)",
    )
    mask_embed_gain: float = flag_field(
        0.0,
        "factor on imported embeddings under a mask; 0 means sqrt(1/keep) with"
        " --mask-fan kept, and 1 otherwise",
    )
    mask_scores: ChoiceEnum(SCORE_SIZES) = flag_field(
        "fan-in",
        "bound of the first scores. fan-in: 1/sqrt(inputs), as in the paper; width:"
        " inputs/128^1.5, and 1/sqrt(512) for embeddings, so that one learning rate"
        " fits every width",
    )
    mask_share: ChoiceEnum(SHARES) = flag_field(
        "layers",
        "use one frozen layer for all layers of a stack, or one for each layer (none)",
    )
    mask_train: str = flag_field(
        "none",
        "what to train densely besides the scores: a comma-separated list of "
        + ", ".join(TRAINABLE)
        + ", or none",
    )
    mask_scale: ChoiceEnum(SCALES) = flag_field(
        "none",
        "learned factors on the masked weights: none, one per tensor, one per row"
        " (output), or one per row and one per column",
    )
    mask_anneal: float = flag_field(
        0.0,
        "fraction of --max-update, in [0, 1], during which the mask goes from soft"
        " (weights kept in part) to hard; validation and checkpoints always use the"
        " hard mask",
    )
    mask_start: str = flag_field(
        "",
        "start the masks from this checkpoint of a trained dense model with the same"
        " shape and dictionaries",
    )
    mask_embed: ChoiceEnum(EMBEDS) = flag_field(
        "masked",
        "mask imported embeddings like all other weights, as the paper does, or use"
        " them whole (dense)",
    )
    embed_path_side: ChoiceEnum(EMBED_SIDES) = flag_field(
        "own",
        "side of a checkpoint from which --encoder-embed-path and --decoder-embed-path"
        " import: their own, or always this one",
    )
    embed_dict: str = flag_field(
        "",
        "dictionary of the imported embeddings, if it is not beside their checkpoint;"
        " separate two, for encoder and decoder, by a comma",
    )
    embed_missing: float = flag_field(
        0.05, "largest fraction of the task's symbols that imported embeddings may miss"
    )
    trust_checkpoint: bool = flag_field(
        False, "also import embeddings from a checkpoint that may run code when read"
    )

    @property
    def trained(self) -> FrozenSet[str]:
        """The groups of parameters that are trained densely."""
        return frozenset(listed(self.mask_train)) - {"none"}

    @property
    def signed(self) -> bool:
        """Whether masks also flip the sign of weights."""
        return str(self.mask_method) == "signed"


def listed(value: Any) -> List[str]:
    """Return a list, given as on the command line or as in a YAML file."""
    return value.split(",") if isinstance(value, str) else list(value)


def add_mask_args(parser, config: Type[MaskConfig] = MaskConfig) -> None:
    """Add the flags of a configuration to fairseq's parser.

    The parser has no defaults: as for fairseq's own models, the architecture fills them
    in, so that each can have its own.
    """
    gen_parser_from_dataclass(parser, config(), delete_default=True)
    for action in parser._actions:
        if action.dest == "mask_method":
            # Read now, not when this module was imported: plugins add methods.
            action.choices = list(METHODS)


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
    # Not flags, but state that fairseq saves in every checkpoint with the arguments:
    # set to True once a model has read its --encoder-embed-path or --mask-start, so
    # that whoever loads the checkpoint does not look for these files again.
    for name in ("embeddings_inside", "start_inside"):
        setattr(args, name, getattr(args, name, False))
