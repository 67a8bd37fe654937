"""Build the stock model of a ticket's shape, from checked flags and dictionaries."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import defaultdict
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Dict, Iterator, Tuple

from fairseq.models import ARCH_MODEL_REGISTRY
from torch import nn

from onelayer_lottery.compat import zero_unset_buffers
from onelayer_lottery.conversion.tasks import read_symbols
from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.planting.roles import HEADS
from onelayer_lottery.ticket.configuration import PATHS
from onelayer_lottery.ticket.declared import check_declared, declared_weights
from onelayer_lottery.ticket.format import Ticket, TicketError
from onelayer_lottery.ticket.signs import check_signs
from onelayer_lottery.ticket.tasks import embedded_symbols, task_of_ticket

_HEAD = re.compile(re.escape(HEADS) + r"([A-Za-z_]\w{0,63})\.(dense|out_proj)\.weight")


def stock_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """Build the stock model of a ticket's shape with any weights, and its task."""
    check_signs(ticket)
    task = ticket_task(ticket)
    arguments = stock_arguments(ticket, task)
    with refuse_contradictions():
        model = ARCH_MODEL_REGISTRY[arguments.arch].build_model(arguments, task)
    zero_unset_buffers(model)
    add_heads(model, ticket)
    return model, task


def model_class_of(ticket: Ticket) -> Any:
    """Return the class of the ticket's masked model."""
    arch = ticket.configuration().arch
    model_class = ARCH_MODEL_REGISTRY.get(arch)
    if not hasattr(model_class, "stock_arch"):
        raise TicketError(f"the ticket's architecture {arch} is not known here")
    return model_class


def model_arguments(ticket: Ticket, *, arch: str) -> Namespace:
    """Return the flags of a ticket's model and, as fairseq's models get, its task's."""
    configuration = ticket.configuration()
    task = {name: v for name, v in configuration.task.items() if name != "_name"}
    return Namespace(arch=arch, **{**task, **configuration.model})


def stock_arguments(ticket: Ticket, task: Any) -> Namespace:
    """Return the arguments of the stock model; refuse a ticket without its weights."""
    model_class = model_class_of(ticket)
    arguments = model_arguments(ticket, arch=model_class.stock_arch)
    vars(arguments).update(dict.fromkeys(PATHS))
    with refuse_contradictions():
        model_class.stock_architecture(arguments)
    try:
        drawn = model_class.reservoirs(arguments)
    except ValueError as error:
        reason = f"the ticket contradicts itself: --reservoir-layers {error}"
        raise TicketError(reason) from None
    weights = declared_weights(
        arguments,
        model_class.sides,
        source=len(task.source_dictionary),
        target=len(task.target_dictionary),
    )
    held: Dict[str, Tuple[int, ...]] = {
        name: masked.mask.shape for name, masked in ticket.masks.items()
    }
    for name, array in ticket.dense.items():
        layer, _, key = name.rpartition(".")
        if key == "weight":
            held[layer] = array.shape
    try:
        check_declared(held, weights, file="the ticket", drawn=drawn or ())
    except LotteryError as error:
        raise TicketError(str(error)) from None
    return arguments


@contextmanager
def refuse_contradictions() -> Iterator[None]:
    """Turn an error of fairseq about flags that contradict each other into ours."""
    try:
        yield
    except (LotteryError, MemoryError):
        raise
    except Exception as error:
        said = quote(str(error).strip().split("\n")[0])
        raise TicketError(
            f"the ticket contradicts itself: fairseq says {said}"
        ) from None


def add_heads(model: nn.Module, ticket: Ticket) -> None:
    """Register the classification heads of a ticket in their shapes."""
    if not hasattr(model, "classification_heads"):
        return
    shapes: Dict[str, Dict[str, Tuple[int, ...]]] = defaultdict(dict)
    weights = {f"{name}.weight": m.mask.shape for name, m in ticket.masks.items()}
    weights.update({name: array.shape for name, array in ticket.dense.items()})
    for name, shape in weights.items():
        match = _HEAD.fullmatch(name)
        if match:
            shapes[match[1]][match[2]] = shape
    for name, parts in shapes.items():
        dense, out = (parts.get(part, ()) for part in ("dense", "out_proj"))
        inner, classes = dense[:1], out[:1]
        chained = dense[1:] == (model.args.encoder_embed_dim,) and out[1:] == inner
        if not chained or hasattr(model.classification_heads, name):
            raise TicketError(f"the ticket's classification head {name} is malformed")
        model.register_classification_head(name, *classes, *inner)


def ticket_task(ticket: Ticket) -> SimpleNamespace:
    """Return what a model needs of its fairseq task: the dictionaries."""
    task = task_of_ticket(ticket)
    symbols = {}
    for side in task.embeddings:
        if side not in ticket.dictionaries:
            raise TicketError(f"the ticket has no dictionary of its {side}")
        try:
            symbols[side] = read_symbols(
                ticket.dictionaries[side],
                task,
                most=embedded_symbols(ticket, task, side),
            )
        except LotteryError as error:
            raise TicketError(
                f"the ticket's dictionary of its {side}: {error}"
            ) from None
    return SimpleNamespace(
        source_dictionary=symbols["source"],
        target_dictionary=symbols.get("target", symbols["source"]),
    )
