"""The tensors that a ticket stands for: frozen weights, scales, a state dict."""

from __future__ import annotations

from argparse import Namespace
from typing import Dict, Iterator, List, Tuple

import torch
from torch import Tensor, nn

from onelayer_lottery.core.modules import score_bound
from onelayer_lottery.frozen.weights import STREAM_VERSION, digest
from onelayer_lottery.identity import IDENTITY_KEY, encode_identity, identity_of
from onelayer_lottery.models.planted import config_of
from onelayer_lottery.planting.tensor_names import FROZEN, MASKED, SCALES, SCORES
from onelayer_lottery.ticket.format import Ticket, TicketError


def frozen_weights(ticket: Ticket) -> Iterator[Tuple[str, Tensor]]:
    """Yield each role and its frozen weight, drawn again and checked by its digest."""
    if ticket.stream != STREAM_VERSION:
        raise TicketError(
            f"the ticket's frozen weights are of stream {ticket.stream}, this version"
            f" draws stream {STREAM_VERSION}; use the version that wrote it"
        )
    for role, frozen in ticket.frozen.items():
        if frozen.values is not None:
            yield role, imported_weight(ticket, role)
            continue
        weight = ticket.frozen_spec(role).draw()
        if digest(weight) != frozen.digest:
            raise TicketError(
                f"the frozen weights of {role} drawn here differ from the ticket's"
            )
        yield role, torch.from_numpy(weight)


def imported_weight(ticket: Ticket, role: str) -> Tensor:
    """Return the imported weight of a role, zero where its mask keeps nothing."""
    frozen = ticket.frozen[role]
    (mask,) = (m.mask for m in ticket.masks.values() if m.role == role)
    weight = torch.zeros(frozen.shape)
    weight[torch.from_numpy(mask)] = torch.from_numpy(frozen.values).float()
    return weight


def scales_of(ticket: Ticket, layer: str) -> List[Tensor]:
    """Return the scales of a masked layer in order; refuse one of another shape."""
    rows, columns = ticket.masks[layer].mask.shape
    start = f"{layer}{SCALES}"
    scales = [
        ticket.dense[name] for name in sorted(ticket.dense) if name.startswith(start)
    ]
    if len(scales) > 2:
        raise TicketError(f"the ticket has {len(scales)} scales of {layer}, not two")
    for scale in scales:
        if scale.shape not in {(1, 1), (rows, 1), (1, columns)}:
            raise TicketError(
                f"the ticket's scale of {layer} has the shape {scale.shape}, its weight"
                f" {(rows, columns)}"
            )
    return [torch.from_numpy(scale) for scale in scales]


def masked_state_dict(ticket: Ticket, model: nn.Module) -> Dict[str, Tensor]:
    """Return the state dict of the ticket's masked model.

    ``model`` has the shape of the ticket's; its buffers and the names of its tied
    parameters are used. A ticket has no scores: those returned choose the same masks,
    with a margin around the threshold, so that training could continue.
    """
    stored = model.state_dict()
    tensors = {n: b for n, b in model.named_buffers() if n in stored}
    identity = encode_identity(_identity(ticket))
    tensors[IDENTITY_KEY] = torch.from_numpy(identity)
    for name, first in first_names(model).items():
        if first in ticket.dense:
            tensors[name] = torch.from_numpy(ticket.dense[first])
    size = ticket.configuration().model.get("mask_scores", "fan-in")
    for name, masked in ticket.masks.items():
        if ticket.frozen[masked.role].values is not None:
            tensors[name + FROZEN] = imported_weight(ticket, masked.role)
        embedding = name.endswith("embed_tokens")
        bound = score_bound(masked.mask.shape[1], size, embedding=embedding)
        # Rounded to half precision once: versions of torch multiply it differently.
        factors = torch.from_numpy(masked.factors()).float()
        scores = factors.abs().add_(0.5).mul_(bound / 2)
        tensors[name + SCORES] = scores.copysign_(factors.add_(0.5)).half()
    for name, scale in ticket.dense.items():
        if SCALES in name:
            tensors[name] = torch.from_numpy(scale)
    for name, other in ticket.tied.items():
        for tensor in [n for n in tensors if n.startswith(f"{other}{MASKED}")]:
            tensors[name + tensor[len(other) :]] = tensors[tensor]
    return tensors


def first_names(model: nn.Module) -> Dict[str, str]:
    """Map the name of each parameter, tied ones included, to the first name of it."""
    first: Dict[int, str] = {}
    names = {}
    for layer, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module.named_parameters(recurse=False):
            name = f"{layer}.{key}"
            names[name] = first.setdefault(id(parameter), name)
    return names


def _identity(ticket: Ticket) -> Dict[str, str]:
    configuration = ticket.configuration()
    config = config_of(configuration.arch, Namespace(**configuration.model))
    return identity_of(vars(config), digest=configuration.digest)
