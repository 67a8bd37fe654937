"""Ticket to checkpoint: a masked one, or a stock one that needs no plugin."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import defaultdict
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor, nn

from onelayer_lottery.checkpoint import Checkpoint
from onelayer_lottery.compat import fast_path_names
from onelayer_lottery.configuration import DIGEST_KEY, PATHS
from onelayer_lottery.container import quote
from onelayer_lottery.declared import (
    check_declared,
    roberta_weights,
    transformer_weights,
)
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.export import FROZEN, SCALES, SCORES
from onelayer_lottery.framing import framed, ticket_kind
from onelayer_lottery.frozen import STREAM_VERSION, digest, frozen_weight
from onelayer_lottery.models.planted import (
    IDENTITY_KEY,
    config_of,
    encode_identity,
)
from onelayer_lottery.modules import scaled, score_bound
from onelayer_lottery.roles import HEADS, kind_of, set_first_value
from onelayer_lottery.tasks import Kind, read_symbols
from onelayer_lottery.ticket import Ticket, TicketError

_HEAD = re.compile(re.escape(HEADS) + r"([A-Za-z_]\w{0,63})\.(dense|out_proj)\.weight")


def checkpoint_from_ticket(ticket: Ticket) -> Checkpoint:
    """Turn a ticket into a checkpoint for ``--user-dir onelayer_lottery``.

    The scores of a ticket are gone; those put in their place choose the same masks,
    with a margin around the threshold from which training could go on.
    """
    model, _ = _stock_model(ticket)
    tensors = dict(model.named_buffers())
    tensors[IDENTITY_KEY] = encode_identity(_identity(ticket))
    for name, other in _first_names(model).items():
        if other in ticket.dense:
            tensors[name] = torch.from_numpy(ticket.dense[other])
    size = ticket.configuration().model.get("mask_scores", "fan-in")
    for name, masked in ticket.masks.items():
        if ticket.frozen[masked.role].values is not None:
            tensors[name + FROZEN] = _imported(ticket, masked.role)
        embedding = name.endswith("embed_tokens")
        bound = score_bound(masked.mask.shape[1], size, embedding=embedding)
        factors = torch.from_numpy(masked.factors()).half()
        scores = factors.abs().add_(0.5).mul_(bound / 2)
        tensors[name + SCORES] = scores.copysign_(factors.add_(0.5))
    tensors.update(
        {
            name: torch.from_numpy(scale)
            for name, scale in ticket.dense.items()
            if SCALES in name
        }
    )
    for name, other in ticket.tied.items():
        for tensor in [n for n in tensors if n.startswith(f"{other}.masked.")]:
            tensors[name + tensor[len(other) :]] = tensors[tensor]
    return framed(ticket, tensors, arch=ticket.configuration().arch)


@torch.no_grad()
def working_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """The model of a ticket, ready to translate, and its task.

    It is the stock one if there is one, which is faster than a masked one.
    """
    if cannot_be_baked(ticket):
        return _planted_model(ticket)
    return baked_model(ticket)


def cannot_be_baked(ticket: Ticket) -> Optional[str]:
    """Why stock fairseq has no model that computes what the ticket's does, if so."""
    kind = ticket.configuration().model.get("reservoir_type", "transformer")
    if kind == "transformer":
        return None
    return (
        f"a model with reservoir layers of type {kind} cannot be baked: stock fairseq's"
        f" {_model_class(ticket).stock_arch} has no such layer ({_LACKING[kind]});"
        " translate with the ticket, or restore it and use --user-dir"
    )


_LACKING = {
    "ffn": "each of its layers has attention",
    "bigru": "none of its layers is recurrent",
    "cnn": "none of its layers is a convolution",
}


def baked_checkpoint(ticket: Ticket, *, dtype: torch.dtype) -> Checkpoint:
    """Turn a ticket into a checkpoint that stock fairseq loads without this package."""
    model, _ = baked_model(ticket)
    aside = fast_path_names(model)
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
        if name not in aside
    }
    for name, other in ticket.tied.items():
        tensors[f"{name}.weight"] = tensors[f"{other}.weight"]
    return framed(ticket, tensors, arch=_model_class(ticket).stock_arch)


@torch.no_grad()
def baked_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """The stock model that computes what the ticket's masked model does, and its task.

    It holds the effective weights and nothing else: each frozen tensor is drawn again,
    checked against its digest, masked into its layers, and let go. Its parameters stay
    trainable as fairseq leaves them: without, torch's products are slower.
    """
    reason = cannot_be_baked(ticket)
    if reason:
        raise TicketError(reason)
    if ticket.configuration().digest:
        return _baked_reservoirs(ticket)
    model, task = _stock_model(ticket)
    layers_of: Dict[str, List[str]] = defaultdict(list)
    for name, masked in ticket.masks.items():
        layers_of[masked.role].append(name)
    for role, frozen in effective_frozen(ticket):
        for name in layers_of[role]:
            factors = torch.from_numpy(ticket.masks[name].factors())
            weight = _weight(model, name, ticket)
            torch.mul(frozen, factors, out=weight)
            weight.copy_(scaled(weight, _scales(ticket, name)))
    aside, first = fast_path_names(model), _first_names(model)
    for name, other in ticket.tied.items():
        if first.get(f"{name}.weight") != first.get(f"{other}.weight", ""):
            raise TicketError(f"the ticket ties {name} to {other}, its model does not")
    unknown = {name for name in ticket.dense if SCALES not in name} - set(first)
    if unknown:
        raise TicketError(f"the ticket has {min(unknown)}, which its model does not")
    for layer, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            name = f"{layer}.{key}"
            kind = kind_of(module, key)
            if first[name] in ticket.dense:
                value = torch.from_numpy(ticket.dense[first[name]])
                if value.shape != parameter.shape:
                    raise TicketError(
                        f"the ticket's {name} has the shape {tuple(value.shape)}, its"
                        f" architecture asks for {tuple(parameter.shape)}"
                    )
                parameter.copy_(value)
            elif kind == "mask" and layer not in {**ticket.masks, **ticket.tied}:
                raise TicketError(f"the ticket has no mask for {layer}")
            elif kind in ("norm", "bias", "positions"):
                set_first_value(
                    parameter, kind=kind, module=module, name=name, seed=ticket.seed
                )
            elif kind is None and name not in aside:
                raise TicketError(f"the ticket has nothing for {name}")
    return model.eval(), task


def _baked_reservoirs(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """The stock model with the effective weights of one with reservoirs."""
    planted, task = _planted_model(ticket)
    model, _ = _stock_model(ticket)
    aside = fast_path_names(model)
    for name, parameter in model.named_parameters():
        layer, _, key = name.rpartition(".")
        if name not in aside:
            parameter.copy_(getattr(planted.get_submodule(layer), key))
    return model.eval(), task


def _planted_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """The model of the ticket's own architecture, with what the ticket holds."""
    task = _task(ticket)
    configuration = ticket.configuration()
    arguments = Namespace(arch=configuration.arch, **configuration.model)
    _stock_arguments(ticket, task)  # for its checks
    try:
        with _refusing():
            ARCH_CONFIG_REGISTRY[configuration.arch](arguments)
            model = _model_class(ticket).build_model(arguments, task)
        _add_heads(model, ticket)
        unknown = set(ticket.dense) - set(model.state_dict())
        if unknown:
            raise TicketError(f"the ticket has {min(unknown)}, which its model has not")
        tensors = checkpoint_from_ticket(ticket)["model"]
        missing = {name for name, _ in model.named_parameters()} - set(tensors)
        if missing:
            raise TicketError(f"the ticket has nothing for {min(missing)}")
        model.load_state_dict(tensors)
    except SystemExit as misfit:
        raise TicketError(f"the ticket contradicts itself: {misfit}") from None
    return model.eval(), task


def _identity(ticket: Ticket) -> Dict[str, str]:
    configuration = ticket.configuration()
    arguments = Namespace(**configuration.model)
    identity = config_of(configuration.arch, arguments).identity()
    if configuration.digest:
        identity[DIGEST_KEY] = configuration.digest
    return identity


def effective_frozen(ticket: Ticket) -> Iterator[Tuple[str, Tensor]]:
    """Draw each frozen tensor again, by role, and check that its bits are the same."""
    if ticket.stream != STREAM_VERSION:
        raise TicketError(
            f"the ticket's frozen weights are of stream {ticket.stream}, this version"
            f" draws stream {STREAM_VERSION}; use the version that wrote it"
        )
    for role, frozen in ticket.frozen.items():
        if frozen.values is not None:
            yield role, _imported(ticket, role)
            continue
        weight = frozen_weight(
            ticket.seed,
            role,
            shape=frozen.shape,
            init=ticket.init,
            keep=ticket.keep,
            fan=ticket.fan,
            gain=frozen.gain,
            padding=frozen.padding,
        )
        if digest(weight) != frozen.digest:
            raise TicketError(
                f"the frozen weights of {role} drawn here differ from the ticket's"
            )
        yield role, weight


def _scales(ticket: Ticket, layer: str) -> List[Tensor]:
    """The scales of a masked layer in their order, each of a shape that fits."""
    rows, columns = ticket.masks[layer].mask.shape
    start = f"{layer}{SCALES}"
    scales = [
        ticket.dense[name] for name in sorted(ticket.dense) if name.startswith(start)
    ]
    for scale in scales:
        if scale.shape not in {(1, 1), (rows, 1), (1, columns)}:
            raise TicketError(
                f"the ticket's scale of {layer} has the shape {scale.shape}, its weight"
                f" {(rows, columns)}"
            )
    return [torch.from_numpy(scale) for scale in scales]


def _imported(ticket: Ticket, role: str) -> Tensor:
    """The imported tensor of a role; where the mask keeps nothing it is zero."""
    frozen = ticket.frozen[role]
    (mask,) = (m.mask for m in ticket.masks.values() if m.role == role)
    weight = torch.zeros(frozen.shape)
    weight[torch.from_numpy(mask)] = torch.from_numpy(frozen.values).float()
    return weight


def _stock_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """The stock model of a ticket's shape, whatever its weights."""
    _check_signs(ticket)
    task = _task(ticket)
    arguments = _stock_arguments(ticket, task)
    with _refusing():
        model = ARCH_MODEL_REGISTRY[arguments.arch].build_model(arguments, task)
    _add_heads(model, ticket)
    return model, task


def _stock_arguments(ticket: Ticket, task: Any) -> Namespace:
    """The arguments of the stock model, which the ticket has the weights of."""
    model_class = _model_class(ticket)
    flags = {**ticket.configuration().model, **dict.fromkeys(PATHS)}
    arguments = Namespace(arch=model_class.stock_arch, **flags)
    with _refusing():
        ARCH_CONFIG_REGISTRY[arguments.arch](arguments)
    try:
        drawn = model_class.drawn_layers(arguments)
    except ValueError as error:
        reason = f"the ticket contradicts itself: --reservoir-layers {error}"
        raise TicketError(reason) from None
    source = len(task.source_dictionary)
    if "decoder" in model_class.sides:
        target = len(task.target_dictionary)
        weights = transformer_weights(arguments, source=source, target=target)
    else:
        weights = roberta_weights(arguments, source=source)
    held: Dict[str, Tuple[int, ...]] = {
        name: masked.mask.shape for name, masked in ticket.masks.items()
    }
    for name, array in ticket.dense.items():
        layer, _, key = name.rpartition(".")
        if key == "weight":
            held[layer] = array.shape
    try:
        check_declared(held, weights, file="the ticket", drawn=drawn)
    except LotteryError as error:
        raise TicketError(str(error)) from None
    return arguments


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn fairseq's word on checked flags that contradict each other to a sentence."""
    try:
        yield
    except (LotteryError, MemoryError):
        raise
    except Exception as error:
        said = quote(str(error).strip().split("\n")[0])
        raise TicketError(
            f"the ticket contradicts itself: fairseq says {said}"
        ) from None


def _check_signs(ticket: Ticket) -> None:
    method = ticket.configuration().model.get("mask_method", "topk")
    for name, masked in ticket.masks.items():
        if (masked.signs is not None) != (method == "signed"):
            there = "no signs" if masked.signs is None else "signs"
            raise TicketError(
                f"the ticket has {there} for {name}, but its --mask-method is {method}"
            )


def _add_heads(model: nn.Module, ticket: Ticket) -> None:
    """Register the classification heads that a ticket has, in their shapes."""
    if not hasattr(model, "classification_heads"):
        return
    shapes: Dict[str, Dict[str, Tuple[int, ...]]] = defaultdict(dict)
    weights = {f"{name}.weight": m.mask.shape for name, m in ticket.masks.items()}
    weights.update({name: array.shape for name, array in ticket.dense.items()})
    for name, shape in weights.items():
        found = _HEAD.fullmatch(name)
        if found:
            shapes[found[1]][found[2]] = shape
    for name, parts in shapes.items():
        dense, out = (parts.get(part, ()) for part in ("dense", "out_proj"))
        inner, classes = dense[:1], out[:1]
        chained = dense[1:] == (model.args.encoder_embed_dim,) and out[1:] == inner
        if not chained or hasattr(model.classification_heads, name):
            raise TicketError(f"the ticket's classification head {name} is malformed")
        model.register_classification_head(name, *classes, *inner)


def _task(ticket: Ticket) -> SimpleNamespace:
    kind = ticket_kind(ticket)
    symbols = {}
    for side in kind.embeddings:
        if side not in ticket.dictionaries:
            raise TicketError(f"the ticket has no dictionary of its {side}")
        try:
            symbols[side] = read_symbols(
                ticket.dictionaries[side], kind, most=_rows(ticket, kind, side)
            )
        except LotteryError as error:
            raise TicketError(
                f"the ticket's dictionary of its {side}: {error}"
            ) from None
    return SimpleNamespace(
        source_dictionary=symbols["source"],
        target_dictionary=symbols.get("target", symbols["source"]),
    )


def _rows(ticket: Ticket, kind: Kind, side: str) -> int:
    """How many symbols of a side the ticket has embeddings of."""
    layer = kind.embeddings[side]
    layer = ticket.tied.get(layer, layer)
    if layer in ticket.masks:
        return ticket.masks[layer].mask.shape[0]
    for name in (f"{layer}.weight", "encoder.embed_tokens.weight"):  # or shared by all
        if ticket.dense.get(name, np.empty(())).ndim == 2:
            return ticket.dense[name].shape[0]
    raise TicketError(f"the ticket has no embeddings of its {side}")


def _first_names(model: nn.Module) -> Dict[str, str]:
    """Each parameter's name, tied ones included, with the first name of it."""
    first: Dict[int, str] = {}
    names = {}
    for layer, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module.named_parameters(recurse=False):
            name = f"{layer}.{key}"
            names[name] = first.setdefault(id(parameter), name)
    return names


def _model_class(ticket: Ticket):
    arch = ticket.configuration().arch
    model_class = ARCH_MODEL_REGISTRY.get(arch)
    if not hasattr(model_class, "stock_arch"):
        raise TicketError(f"the ticket's architecture {arch} is not known here")
    return model_class


def _weight(model: nn.Module, name: str, ticket: Ticket) -> Tensor:
    try:
        weight = model.get_submodule(name).weight
    except AttributeError:
        raise TicketError(
            f"the ticket has a mask for {name}, which its architecture"
            f" {ticket.configuration().arch} does not have"
        ) from None
    shape = tuple(ticket.masks[name].mask.shape)
    if tuple(weight.shape) != shape:
        raise TicketError(
            f"the ticket's mask of {name} has the shape {shape}, its architecture and"
            f" dictionaries ask for {tuple(weight.shape)}"
        )
    return weight.data
