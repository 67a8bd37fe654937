"""The frame of a checkpoint: what fairseq asks of one besides the tensors."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict

from fairseq.dataclass.configs import DatasetConfig, GenerationConfig
from omegaconf import OmegaConf
from torch import Tensor

from onelayer_lottery.checkpoint import Checkpoint
from onelayer_lottery.configuration import PATHS
from onelayer_lottery.tasks import Kind, kind_of_task
from onelayer_lottery.ticket import Ticket


def ticket_kind(ticket: Ticket) -> Kind:
    """The kind of task that a ticket's model was trained for."""
    return kind_of_task(ticket.configuration().task.get("_name"))


def framed(ticket: Ticket, tensors: Dict[str, Tensor], *, arch: str) -> Checkpoint:
    """A checkpoint that torch's safety check lets pass without this package."""
    configuration, kind = ticket.configuration(), ticket_kind(ticket)
    task = {"data": "", **configuration.task, **dict(kind.task_values)}
    task["_name"] = kind.name
    model = {**task, **configuration.model, "arch": arch, "task": kind.name}
    model["_name"] = arch
    if arch != configuration.arch:
        model.update(dict.fromkeys(PATHS))  # stock fairseq would read the files
    return {
        "args": None,
        "cfg": {
            "model": _attributes(**model),
            "task": task,
            "criterion": {
                "_name": kind.criterion,
                **{flag: task[flag] for flag in kind.criterion_flags if flag in task},
                **dict(kind.criterion_values),
            },
            # What fairseq's Python interface reads of a checkpoint.
            "generation": _defaults(GenerationConfig),
            "dataset": {**_defaults(DatasetConfig), "required_batch_size_multiple": 1},
            "tokenizer": None,
            "bpe": None,
        },
        "model": tensors,
        "optimizer_history": [
            {
                "criterion_name": kind.criterion_class,
                "optimizer_name": "none",
                "num_updates": 0,
                "lr_scheduler_state": {"best": None},
            }
        ],
        "extra_state": {
            "epoch": 1,
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0},
        },
    }


def _defaults(section: type) -> Dict[str, Any]:
    values = OmegaConf.to_container(OmegaConf.structured(section()), enum_to_str=True)
    return {
        name: value
        for name, value in values.items()
        if not (isinstance(value, str) and "${" in value)
    }


def _attributes(**values: Any) -> OrderedDict:
    """Values to be read as attributes, for tools that expect a namespace.

    A namespace would not pass torch's safety check; an ordered dictionary does, and
    its attributes with it.
    """
    both = OrderedDict(values)
    both.__dict__.update(values)
    return both
