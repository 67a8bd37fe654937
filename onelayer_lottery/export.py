"""Checkpoint to ticket: of a trained model, what makes it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from enum import Enum
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

from onelayer_lottery.checkpoint import Checkpoint
from onelayer_lottery.config import MaskConfig
from onelayer_lottery.configuration import (
    DIGEST_KEY,
    IMPORTED,
    PATHS,
    Configuration,
    check_configuration,
)
from onelayer_lottery.container import Refusal, quote
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.frozen import STREAM_VERSION, digest, frozen_weight
from onelayer_lottery.gains import gain_of
from onelayer_lottery.mask import top_k_mask
from onelayer_lottery.models.planted import (
    IDENTITY_KEY,
    PlantedModel,
    config_of,
    decode_identity,
)
from onelayer_lottery.modules import IMPORTED as IMPORTED_TENSOR
from onelayer_lottery.roles import role_of
from onelayer_lottery.tasks import (
    TRANSLATION,
    Dictionaries,
    check_sizes,
    find_task_dictionaries,
    kind_of_task,
    task_name,
)
from onelayer_lottery.ticket import Bpe, FrozenTensor, MaskedTensor, Ticket

# How a checkpoint names the scores and the imported matrix of a layer.
SCORES = ".masked.scores"
FROZEN = f".masked.frozen.{IMPORTED_TENSOR}"
SCALES = ".masked.scales."


def ticket_from_checkpoint(
    state: Checkpoint,
    *,
    dictionaries: Optional[Dictionaries] = None,
    bpe: Optional[Bpe] = None,
    embeddings: torch.dtype = torch.float32,
) -> Ticket:
    """Take from a checkpoint of a masked model what makes a ticket: seed and bits.

    Without dictionaries it can be looked at, but not turned into a model. The values of
    imported embeddings that are kept are stored as ``embeddings``.
    """
    check_masked(state)
    task = _arguments(state, "task")
    raw = _configuration(_arguments(state, "model"), task)
    flags = _checked(raw).model
    config = config_of(raw["arch"], Namespace(**flags))
    ticket = Ticket(
        seed=config.mask_seed,
        init=str(config.mask_init),
        fan=str(config.mask_fan),
        keep=config.mask_keep,
        stream=STREAM_VERSION,
        frozen={},
        masks={},
        tied={},
        dense={},
        config=raw,
        dictionaries={},
        bpe=bpe,
    )
    drawn = decode_identity(state["model"][IDENTITY_KEY]).get(DIGEST_KEY)
    if drawn:
        ticket.config[DIGEST_KEY] = drawn
    if dictionaries:
        ticket.config["task"].update(dictionaries.flags)
        ticket.dictionaries.update(dictionaries.texts)
        kind = kind_of_task(task_name(task))
        classes = raw["task"].get("num_classes")
        check_sizes(dictionaries, kind, state["model"], classes=classes)
    ticket.configuration()
    padding = Dictionary().pad()
    for tensor_name, tensor in state["model"].items():
        name = tensor_name[: -len(SCORES)]
        if not tensor_name.endswith(SCORES):
            layer = tensor_name.rpartition(".")[0].partition(".masked.")[0]
            own = tensor_name.endswith(".bias") or not _tied_to(layer, flags)
            if _is_trained(tensor_name) and own:
                width = embeddings if "embed_tokens" in tensor_name else torch.float32
                ticket.dense[tensor_name] = tensor.to(width).numpy()
            continue
        tied = _tied_to(name, flags)
        if tied:
            ticket.tied[name] = tied
            continue
        role = role_of(name, str(config.mask_share))
        shape = ticket.frozen[role].shape if role in ticket.frozen else tensor.shape
        if tensor.dim() != 2 or not tensor.is_floating_point() or not len(tensor):
            raise LotteryError(f"its scores of {name} are not a matrix of numbers")
        if tuple(shape) != tuple(tensor.shape) or (
            name.endswith("embed_tokens") and shape[0] <= padding
        ):
            raise LotteryError(f"its scores of {name} are not of the shape of its role")
        mask = top_k_mask(tensor, config.mask_keep)
        imported = state["model"].get(f"{name}{FROZEN}")
        if imported is not None:
            if imported.shape != tensor.shape:
                raise LotteryError(f"its scores of {name} do not fit its embeddings")
            values = imported.float()[mask].to(embeddings).numpy()
            ticket.frozen[role] = FrozenTensor(
                tuple(tensor.shape), 1.0, None, digest(imported.float()), values
            )
        elif role not in ticket.frozen:
            ticket.frozen[role] = _frozen_tensor(
                name, tuple(tensor.shape), role=role, config=config, padding=padding
            )
        signs = torch.signbit(tensor[mask]).numpy() if config.signed else None
        ticket.masks[name] = MaskedTensor(role, mask.numpy(), signs)
    return ticket


def check_masked(state: Checkpoint) -> None:
    """Refuse a checkpoint that has no masks."""
    if IDENTITY_KEY not in state["model"]:
        raise LotteryError(
            "it has no masks: it is a checkpoint of a dense model, which cannot become"
            " a ticket; train one of the transformer_onelayer_random or"
            " roberta_onelayer_random architectures"
        )


def find_dictionaries(
    state: Checkpoint, *, beside: Path, given: Optional[Path] = None
) -> Dictionaries:
    """Read the dictionaries that a checkpoint was trained with.

    They are looked for in the folder that is given, or else beside the checkpoint and
    where the training data were.
    """
    task = _arguments(state, "task")
    return find_task_dictionaries(task, beside=beside, given=given)


def _arguments(state: Checkpoint, part: str) -> Namespace:
    """The arguments of a part of a checkpoint's configuration, whatever its form."""
    sections = state.get("cfg")
    own = dict.get(sections, part) if isinstance(sections, dict) else None
    for found in (own, state.get("args")):
        values = vars(found) if isinstance(found, Namespace) else found
        if isinstance(values, dict) and values:
            named = dict(dict.items(values))
            if all(type(name) is str for name in named):
                return Namespace(**named)
    raise LotteryError("it holds no configuration: it is not of fairseq's trainer")


def checkpoint_arguments(state: Checkpoint, base: type) -> Namespace:
    """The checked arguments of a checkpoint's model, which is of the class ``base``."""
    raw = _configuration(_arguments(state, "model"), Namespace(), base)
    return Namespace(arch=raw["arch"], **_checked(raw).model)


def _checked(config: Dict[str, Any]) -> Configuration:
    try:
        return check_configuration(config)
    except Refusal as refusal:
        raise LotteryError(f"it cannot be used: {refusal}") from None


def _configuration(
    model: Namespace, task: Namespace, base: type = PlantedModel
) -> Dict[str, Any]:
    """What is needed to build the model again: no path, nothing of the training."""
    arch = _architecture(model, base)
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    flags = {
        name: getattr(model, name)
        for name in vars(parser.parse_args([]))
        if hasattr(model, name)
    }
    # Imported embeddings are in the ticket: that there was a file matters, not where.
    for name in PATHS:
        if flags.get(name):
            flags[name] = IMPORTED
    flags.update(embed_dict="", trust_checkpoint=False, mask_start="")
    flags["embeddings_inside"] = getattr(model, "embeddings_inside", False)
    kind = kind_of_task(task_name(task))
    kept = {n: _plain(getattr(task, n)) for n in kind.flags if hasattr(task, n)}
    if kind is not TRANSLATION:  # of which a ticket says nothing
        kept["_name"] = kind.name
    return {
        "arch": arch,
        "model": {name: _plain(value) for name, value in flags.items()},
        "task": kept,
    }


def _architecture(model: Namespace, base: type) -> str:
    arch = getattr(model, "arch", None) or getattr(model, "_name", None)
    model_class = ARCH_MODEL_REGISTRY.get(arch) if isinstance(arch, str) else None
    if model_class is None or not issubclass(model_class, base):
        raise LotteryError(
            f"its architecture {quote(arch)} is not known to this version"
        )
    return arch


def _plain(value: Any) -> Any:
    """A flag's value as JSON has it; fairseq's choices are strings of a class."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(value) if isinstance(value, (str, Enum)) else quote(value)


def _frozen_tensor(
    name: str, shape: Tuple[int, int], *, role: str, config: MaskConfig, padding: int
) -> FrozenTensor:
    gain = gain_of(name, config.mask_gain)
    row = padding if name.endswith("embed_tokens") else None
    weight = frozen_weight(
        config.mask_seed,
        role,
        shape=shape,
        init=str(config.mask_init),
        keep=config.mask_keep,
        fan=str(config.mask_fan),
        gain=gain,
        padding=row,
    )
    return FrozenTensor(shape, gain, row, digest(weight))


def _is_trained(name: str) -> bool:
    return name.rpartition(".")[2] in ("weight", "bias") or SCALES in name


def _tied_to(name: str, flags: Dict[str, Any]) -> Optional[str]:
    """The layer whose weight a layer uses under another name, by fairseq's flags."""
    if name == "encoder.lm_head" and not flags.get("untie_weights_roberta"):
        return "encoder.sentence_encoder.embed_tokens"
    if flags.get("share_all_embeddings"):
        followers = ("decoder.embed_tokens", "decoder.output_projection")
        return "encoder.embed_tokens" if name in followers else None
    if flags.get("share_decoder_input_output_embed"):
        return "decoder.embed_tokens" if name == "decoder.output_projection" else None
    return None
