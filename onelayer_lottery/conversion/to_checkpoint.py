"""Ticket to checkpoint: a masked one, or a stock one that needs no plugin."""

from __future__ import annotations

import torch

from onelayer_lottery.checkpoint.reading import Checkpoint
from onelayer_lottery.compat import fast_path_names
from onelayer_lottery.conversion.checkpoint_layout import checkpoint_layout
from onelayer_lottery.conversion.stock_model import model_class_of, stock_model
from onelayer_lottery.conversion.ticket_tensors import masked_state_dict
from onelayer_lottery.conversion.to_model import baked_model
from onelayer_lottery.ticket.format import Ticket


def checkpoint_from_ticket(ticket: Ticket) -> Checkpoint:
    """Turn a ticket into a checkpoint for ``--user-dir onelayer_lottery``."""
    model, _ = stock_model(ticket)
    tensors = masked_state_dict(ticket, model)
    return checkpoint_layout(ticket, tensors, arch=ticket.configuration().arch)


def baked_checkpoint(ticket: Ticket, *, dtype: torch.dtype) -> Checkpoint:
    """Turn a ticket into a checkpoint that stock fairseq loads without this package."""
    model, _ = baked_model(ticket)
    copies = fast_path_names(model)
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
        if name not in copies
    }
    for name, other in ticket.tied.items():
        tensors[f"{name}.weight"] = tensors[f"{other}.weight"]
    return checkpoint_layout(ticket, tensors, arch=model_class_of(ticket).stock_arch)
