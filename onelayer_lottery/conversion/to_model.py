"""Ticket to model: the stock one with effective weights, or else the masked one."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections import defaultdict
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor, nn

from onelayer_lottery.compat import fast_path_names
from onelayer_lottery.conversion.stock_model import (
    add_heads,
    check_signs,
    model_arguments,
    model_class_of,
    refuse_contradictions,
    stock_arguments,
    stock_model,
    ticket_task,
)
from onelayer_lottery.conversion.ticket_tensors import (
    first_names,
    frozen_weights,
    masked_state_dict,
    scales_of,
)
from onelayer_lottery.core.modules import scaled
from onelayer_lottery.frozen.weights import digest
from onelayer_lottery.identity import DIGEST_KEY
from onelayer_lottery.models.planted import config_of
from onelayer_lottery.planting.roles import (
    group_of,
    random_weight,
    role_of,
    set_first_value,
)
from onelayer_lottery.planting.tensor_names import SCALES
from onelayer_lottery.ticket.configuration import PATHS
from onelayer_lottery.ticket.declared import layer_of
from onelayer_lottery.ticket.format import Ticket, TicketError


@torch.no_grad()
def working_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """Return the model of a ticket in evaluation mode, and its task.

    It is the stock model if there is one, because that is faster than a masked one.
    """
    if cannot_be_baked(ticket):
        return _masked_model(ticket)
    return baked_model(ticket)


def cannot_be_baked(ticket: Ticket) -> Optional[str]:
    """Return why stock fairseq has no model that computes the same, or None."""
    layer_type = ticket.configuration().model.get("reservoir_type", "transformer")
    if layer_type == "transformer":
        return None
    return (
        f"a model with reservoir layers of type {layer_type} cannot be baked: stock"
        f" fairseq's {model_class_of(ticket).stock_arch} has no such layer"
        f" ({_LACKING[layer_type]}); translate with the ticket, or restore it and use"
        " --user-dir"
    )


_LACKING = {
    "ffn": "each of its layers has attention",
    "bigru": "none of its layers is recurrent",
    "cnn": "none of its layers is a convolution",
}


@torch.no_grad()
def baked_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """Return the stock model that computes what the ticket's model does, and its task.

    It holds the effective weights and nothing else: each frozen weight is drawn again,
    checked against its digest, masked into its layers, and released. Its parameters
    keep requires_grad as fairseq sets it: torch's products are slower without.
    """
    reason = cannot_be_baked(ticket)
    if reason:
        raise TicketError(reason)
    model, task = stock_model(ticket)
    _check_names(model, ticket)
    layers_of: Dict[str, List[str]] = defaultdict(list)
    for name, masked in ticket.masks.items():
        layers_of[masked.role].append(name)
    for role, frozen in frozen_weights(ticket):
        for name in layers_of[role]:
            factors = torch.from_numpy(ticket.masks[name].factors())
            weight = _weight(model, name, ticket)
            torch.mul(frozen, factors, out=weight)
            weight.copy_(scaled(weight, scales_of(ticket, name)))
    reservoirs = _reservoirs(ticket, task)
    written = {*ticket.masks, *ticket.tied}
    written |= _draw_reservoirs(model, ticket, reservoirs)
    first, copies = first_names(model), fast_path_names(model)
    for layer, module in model.named_modules():
        # In a reservoir model, everything outside of the reservoirs was trained.
        fixed = reservoirs is None or layer_of(layer) in reservoirs
        for key, parameter in module.named_parameters(recurse=False):
            name, group = f"{layer}.{key}", group_of(module, key)
            if first[name] in ticket.dense:
                _copy(ticket, first[name], parameter)
            elif group == "mask":
                if layer not in written:
                    raise TicketError(f"the ticket has no mask for {layer}")
            elif group is not None and fixed:
                set_first_value(
                    parameter, group=group, module=module, name=name, seed=ticket.seed
                )
            elif name not in copies:
                raise TicketError(f"the ticket has nothing for {name}")
    return model.eval(), task


def _check_names(model: nn.Module, ticket: Ticket) -> None:
    """Refuse a ticket with a tie or a tensor that its model does not have."""
    first = first_names(model)
    for name, other in ticket.tied.items():
        if first.get(f"{name}.weight") != first.get(f"{other}.weight", ""):
            raise TicketError(f"the ticket ties {name} to {other}, its model does not")
    unknown = {name for name in ticket.dense if SCALES not in name} - set(first)
    if unknown:
        raise TicketError(f"the ticket has {min(unknown)}, which its model does not")


def _copy(ticket: Ticket, name: str, parameter: Tensor) -> None:
    value = torch.from_numpy(ticket.dense[name])
    if value.shape != parameter.shape:
        raise TicketError(
            f"the ticket's {name} has the shape {tuple(value.shape)}, its architecture"
            f" asks for {tuple(parameter.shape)}"
        )
    parameter.copy_(value)


def _reservoirs(ticket: Ticket, task: Any) -> Optional[Dict[str, bool]]:
    """Return whether each reservoir has masks, by layer; None: of another model."""
    configuration, model_class = ticket.configuration(), model_class_of(ticket)
    arguments = stock_arguments(ticket, task)
    vars(arguments).update({p: configuration.model.get(p) for p in PATHS})
    reservoirs = model_class.reservoirs(arguments)
    if reservoirs is not None:
        config = config_of(configuration.arch, arguments)
        problems = model_class.problems(config, arguments)
        if problems:
            raise TicketError(f"the ticket contradicts itself: {problems[0]}")
    return reservoirs


def _draw_reservoirs(
    model: nn.Module, ticket: Ticket, reservoirs: Optional[Dict[str, bool]]
) -> Set[str]:
    """Draw the weights of reservoirs without masks, and return the names of these.

    The digest in the ticket is that of all frozen weights in the order of the layers.
    """
    configuration = ticket.configuration()
    config = config_of(configuration.arch, Namespace(**configuration.model))
    for name in ticket.masks:
        if reservoirs is not None and not reservoirs.get(layer_of(name)):
            raise TicketError(f"the ticket has a mask for {name}, its model does not")
    digests: Dict[str, str] = {}  # by role
    drawn: Dict[str, Tensor] = {}  # by role
    names: Set[str] = set()
    for name, module in model.named_modules():
        masked = (reservoirs or {}).get(layer_of(name))
        if masked is None:
            continue
        trained = config.trained if masked else ()
        for key, _ in module.named_parameters(recurse=False):
            tensor = f"{name}.{key}"
            if tensor in ticket.dense and group_of(module, key) not in trained:
                raise TicketError(f"the ticket has {tensor}, which its model does not")
        if group_of(module, "weight") != "mask":
            continue
        if masked:
            if name not in ticket.masks:
                raise TicketError(f"the ticket has no mask for {name}")
            role = ticket.masks[name].role
            digests.setdefault(role, ticket.frozen[role].digest)
        else:
            role = role_of(name, str(config.mask_share))
            if role not in drawn:
                drawn[role] = random_weight(name, module, config, keep=1.0)
                digests[role] = digest(drawn[role].numpy())
            module.weight.copy_(drawn[role])
            names.add(name)
    expected = None
    if reservoirs is not None:
        expected = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
    if configuration.digest != expected:
        raise TicketError(
            f"the ticket contradicts itself: it has {DIGEST_KEY}"
            f" {configuration.digest}, its weights drawn here have {expected}"
        )
    return names


def _masked_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """Build the model of the ticket's own architecture, with what the ticket holds."""
    task = ticket_task(ticket)
    configuration = ticket.configuration()
    arguments = model_arguments(ticket, arch=configuration.arch)
    stock_arguments(ticket, task)  # refuses what the ticket does not hold
    check_signs(ticket)
    try:
        with refuse_contradictions():
            ARCH_CONFIG_REGISTRY[configuration.arch](arguments)
            model = model_class_of(ticket).build_model(arguments, task)
        add_heads(model, ticket)
        unknown = set(ticket.dense) - set(model.state_dict())
        if unknown:
            raise TicketError(
                f"the ticket has {min(unknown)}, which its model does not"
            )
        tensors = masked_state_dict(ticket, model)
        missing = {name for name, _ in model.named_parameters()} - set(tensors)
        if missing:
            raise TicketError(f"the ticket has nothing for {min(missing)}")
        model.load_state_dict(tensors)
    except SystemExit as misfit:
        raise TicketError(f"the ticket contradicts itself: {misfit}") from None
    return model.eval(), task


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
