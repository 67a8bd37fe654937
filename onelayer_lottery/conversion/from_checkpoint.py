"""Checkpoint to ticket: keep the seed, the mask bits and what was trained densely."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, Dict, Optional, Tuple, Union

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor

from onelayer_lottery.checkpoint.reading import Checkpoint, section_of
from onelayer_lottery.conversion.tasks import (
    Dictionaries,
    check_sizes,
    task_of_flags,
)
from onelayer_lottery.core.mask import top_k_mask
from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.frozen.weights import STREAM_VERSION, digest
from onelayer_lottery.identity import DIGEST_KEY, IDENTITY_KEY, decode_identity
from onelayer_lottery.models.planted import PlantedModel, config_of
from onelayer_lottery.planting.config import MaskConfig
from onelayer_lottery.planting.roles import frozen_spec, role_of
from onelayer_lottery.planting.tensor_names import FROZEN, MASKED, SCALES, SCORES
from onelayer_lottery.ticket.configuration import (
    IMPORTED,
    PATHS,
    Configuration,
    check_configuration,
)
from onelayer_lottery.ticket.container import Refusal
from onelayer_lottery.ticket.format import Bpe, FrozenTensor, MaskedTensor, Ticket
from onelayer_lottery.ticket.tasks import TRANSLATION

Classes = Union[type, Tuple[type, ...]]


def ticket_from_checkpoint(
    state: Checkpoint,
    *,
    dictionaries: Optional[Dictionaries] = None,
    bpe: Optional[Bpe] = None,
    embeddings: torch.dtype = torch.float32,
) -> Ticket:
    """Make the ticket of a checkpoint of a masked model.

    Without dictionaries it can be inspected, but not turned into a model. Kept values
    of imported embeddings are stored in the precision ``embeddings``.
    """
    check_masked(state)
    task_flags = _flags(state, "task")
    raw = _configuration(_flags(state, "model"), task_flags)
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
        task = task_of_flags(task_flags)
        classes = raw["task"].get("num_classes")
        check_sizes(dictionaries, task, state["model"], classes=classes)
    ticket.configuration()
    for name, tensor in state["model"].items():
        if name.endswith(SCORES):
            layer = name[: -len(SCORES)]
            tied = _tied_to(layer, flags)
            if tied:
                ticket.tied[layer] = tied
            else:
                imported = state["model"].get(f"{layer}{FROZEN}")
                _add_mask(ticket, layer, tensor, config, imported, embeddings)
        elif _is_trained(name, flags):
            dtype = embeddings if "embed_tokens" in name else torch.float32
            ticket.dense[name] = tensor.to(dtype).numpy()
    return ticket


def _add_mask(
    ticket: Ticket,
    layer: str,
    scores: Tensor,
    config: MaskConfig,
    imported: Optional[Tensor],
    embeddings: torch.dtype,
) -> None:
    """Add the mask of a layer, and the frozen tensor of its role if it is new."""
    padding = Dictionary().pad()
    role = role_of(layer, str(config.mask_share))
    shape = ticket.frozen[role].shape if role in ticket.frozen else scores.shape
    if scores.dim() != 2 or not scores.is_floating_point() or not scores.numel():
        raise LotteryError(f"its scores of {layer} are not a matrix of numbers")
    if tuple(shape) != tuple(scores.shape) or (
        layer.endswith("embed_tokens") and shape[0] <= padding
    ):
        raise LotteryError(f"its scores of {layer} are not of the shape of its role")
    mask = top_k_mask(scores, config.mask_keep)
    if imported is not None:
        if imported.shape != scores.shape:
            raise LotteryError(f"its scores of {layer} do not fit its embeddings")
        values = imported.float()[mask].to(embeddings).numpy()
        ticket.frozen[role] = FrozenTensor(
            tuple(scores.shape), 1.0, None, digest(imported.float().numpy()), values
        )
    elif role not in ticket.frozen:
        row = padding if layer.endswith("embed_tokens") else None
        spec = frozen_spec(
            layer, tuple(scores.shape), config, keep=config.mask_keep, padding=row
        )
        ticket.frozen[role] = FrozenTensor(
            spec.shape, spec.gain, row, digest(spec.draw())
        )
    signs = torch.signbit(scores[mask]).numpy() if config.signed else None
    ticket.masks[layer] = MaskedTensor(role, mask.numpy(), signs)


def check_masked(state: Checkpoint) -> None:
    """Refuse a checkpoint that has no masks."""
    if IDENTITY_KEY not in state["model"]:
        raise LotteryError(
            "it has no masks: it is a checkpoint of a dense model, which cannot become"
            " a ticket; train one of the transformer_onelayer_random or"
            " roberta_onelayer_random architectures"
        )


def _flags(state: Checkpoint, part: str) -> Dict[str, Any]:
    flags = section_of(state, part)
    if not flags:
        raise LotteryError("it holds no configuration: it is not of fairseq's trainer")
    return flags


def checkpoint_arguments(state: Checkpoint, base: Classes) -> Namespace:
    """Return the checked arguments of a checkpoint's model, a subclass of ``base``."""
    raw = _configuration(_flags(state, "model"), {}, base)
    return Namespace(arch=raw["arch"], **_checked(raw).model)


def _checked(config: Dict[str, Any]) -> Configuration:
    try:
        return check_configuration(config)
    except Refusal as refusal:
        raise LotteryError(f"it cannot be used: {refusal}") from None


def _configuration(
    model: Dict[str, Any], task_flags: Dict[str, Any], base: Classes = PlantedModel
) -> Dict[str, Any]:
    """Return what is needed to build the model again: no path, no training flags."""
    arch = _architecture(model, base)
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    flags = {name: model[name] for name in vars(parser.parse_args([])) if name in model}
    # Imported embeddings are in the ticket, so the path of their file is dropped.
    for name in PATHS:
        if flags.get(name):
            flags[name] = IMPORTED
    flags.update(embed_dict="", trust_checkpoint=False, mask_start="")
    flags["embeddings_inside"] = model.get("embeddings_inside", False)
    task = task_of_flags(task_flags)
    kept = {n: task_flags[n] for n in task.flags if n in task_flags}
    if task is not TRANSLATION:  # a ticket without a name translates
        kept["_name"] = task.name
    return {
        "arch": arch,
        "model": flags,
        "task": kept,
    }


def _architecture(model: Dict[str, Any], base: Classes) -> str:
    arch = model.get("arch") or model.get("_name")
    model_class = ARCH_MODEL_REGISTRY.get(arch) if isinstance(arch, str) else None
    if arch is None or model_class is None or not issubclass(model_class, base):
        raise LotteryError(
            f"its architecture {quote(arch)} is not known to this version"
        )
    return arch


def _is_trained(name: str, flags: Dict[str, Any]) -> bool:
    """Whether a tensor belongs in the ticket: trained, and not tied to another."""
    layer, _, key = name.rpartition(".")
    if key == "bias":
        return True
    if key != "weight" and SCALES not in name:
        return False
    return not _tied_to(layer.partition(MASKED)[0], flags)


def _tied_to(name: str, flags: Dict[str, Any]) -> Optional[str]:
    """Return the layer whose weight a layer shares, according to fairseq's flags."""
    if name == "encoder.lm_head" and not flags.get("untie_weights_roberta"):
        return "encoder.sentence_encoder.embed_tokens"
    if flags.get("share_all_embeddings"):
        followers = ("decoder.embed_tokens", "decoder.output_projection")
        return "encoder.embed_tokens" if name in followers else None
    if flags.get("share_decoder_input_output_embed"):
        return "decoder.embed_tokens" if name == "decoder.output_projection" else None
    return None
