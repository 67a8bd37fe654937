"""The layout of a checkpoint: what fairseq needs in it besides the tensors."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields
from typing import Any, Dict

from fairseq.dataclass.configs import DatasetConfig, GenerationConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from onelayer_lottery.checkpoint.reading import Checkpoint
from onelayer_lottery.ticket.configuration import PATHS
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import task_of_ticket


def checkpoint_layout(
    ticket: Ticket, tensors: Dict[str, Tensor], *, arch: str
) -> Checkpoint:
    """Return a checkpoint that passes torch's safety check without this package."""
    configuration, task = ticket.configuration(), task_of_ticket(ticket)
    task_flags = {"data": "", **configuration.task, **dict(task.task_values)}
    task_flags["_name"] = task.name
    model = {**task_flags, **configuration.model, "arch": arch, "task": task.name}
    model["_name"] = arch
    if arch != configuration.arch:
        model.update(dict.fromkeys(PATHS))  # stock fairseq would read the files
    return {
        "args": None,
        "cfg": {
            "model": _model_section(arch, model),
            "task": task_flags,
            "criterion": {
                "_name": task.criterion,
                **{
                    flag: task_flags[flag]
                    for flag in task.criterion_flags
                    if flag in task_flags
                },
                **dict(task.criterion_values),
            },
            # Read by fairseq's Python interface.
            "generation": plain_defaults(GenerationConfig),
            "dataset": {
                **plain_defaults(DatasetConfig),
                "required_batch_size_multiple": 1,
            },
            "tokenizer": None,
            "bpe": None,
        },
        "model": tensors,
        "optimizer_history": [
            {
                "criterion_name": task.criterion_class,
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


def plain_defaults(section: type) -> Dict[str, Any]:
    """Return the defaults of a section, without those that refer to other sections."""
    values: Any = OmegaConf.to_container(
        OmegaConf.structured(section()), enum_to_str=True
    )
    return {
        name: value
        for name, value in values.items()
        if not (isinstance(value, str) and "${" in value)
    }


def _model_section(arch: str, values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the flags of a model in the form in which fairseq expects them."""
    if arch not in MODEL_DATACLASS_REGISTRY:
        return _attributes(**values)
    known = {field.name for field in fields(MODEL_DATACLASS_REGISTRY[arch])}
    return {name: value for name, value in values.items() if name in known}


def _attributes(**values: Any) -> OrderedDict:
    """Return values that can also be read as attributes, as of a namespace.

    A namespace would not pass torch's safety check. An ordered dictionary does, with
    its attributes.
    """
    both = OrderedDict(values)
    both.__dict__.update(values)
    return both
