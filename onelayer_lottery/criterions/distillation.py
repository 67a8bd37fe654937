"""Distillation: a criterion that also learns from a trained model's probabilities."""

# No "from __future__ import annotations" here: fairseq reads the types at run time.
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, List

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from torch import nn

from onelayer_lottery.checkpoint.reading import Checkpoint, load_checkpoint
from onelayer_lottery.conversion.checkpoint_layout import plain_defaults
from onelayer_lottery.conversion.from_checkpoint import checkpoint_arguments
from onelayer_lottery.embeddings.checkpoint_file import SIDES
from onelayer_lottery.embeddings.into_model import check_symbols
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.models.planted import PlantedModel
from onelayer_lottery.planting.tensor_names import SCORES
from onelayer_lottery.ticket.configuration import PATHS
from onelayer_lottery.ticket.declared import check_declared, declared_weights


@dataclass
class DistillationConfig(LabelSmoothedCrossEntropyCriterionConfig):
    teacher: str = field(
        default="",
        metadata={"help": "checkpoint of the trained model to learn from (required)"},
    )
    teacher_weight: float = field(
        default=0.5,
        metadata={
            "help": "weight of the teacher in the loss, in (0, 1] (default: 0.5)"
        },
    )


@register_criterion("distillation", dataclass=DistillationConfig)
class DistillationCriterion(LabelSmoothedCrossEntropyCriterion):
    """(1 - w) x label-smoothed cross entropy + w x cross entropy with the teacher's.

    Validation leaves the teacher out, so that its loss is that of the stock criterion.
    """

    def __init__(
        self,
        task,
        sentence_avg,
        label_smoothing,
        teacher,
        teacher_weight,
        ignore_prefix_size=0,
        report_accuracy=False,
    ):
        super().__init__(
            task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy
        )
        if not teacher:
            raise SystemExit("--criterion distillation needs --teacher CHECKPOINT")
        if not 0 < teacher_weight <= 1:
            raise SystemExit(
                f"--teacher-weight is {teacher_weight}; give a part of the loss in"
                " (0, 1]"
            )
        self.teacher_weight = teacher_weight
        # In a list, so that it is not a submodule, which fairseq writes to checkpoints.
        self._teacher: List[nn.Module] = [_load(teacher, task)]

    def compute_loss(self, model, net_output, sample, reduce=True):
        loss, nll_loss = super().compute_loss(model, net_output, sample, reduce)
        if not model.training:
            return loss, nll_loss
        lprobs, target = self.get_lprobs_and_target(model, net_output, sample)
        teacher = self._teacher[0].to(device=lprobs.device)
        with torch.no_grad():
            output = teacher(**sample["net_input"])
            wanted, _ = self.get_lprobs_and_target(teacher, output, sample)
        away = -(wanted.float().exp() * lprobs).sum(-1)
        away = away.masked_fill(target.eq(self.padding_idx), 0.0)
        away = away.sum() if reduce else away.unsqueeze(-1)
        return (1 - self.teacher_weight) * loss + self.teacher_weight * away, nll_loss


def _load(path: str, task) -> nn.Module:
    try:
        state = load_checkpoint(path)  # refuses files that may run code
        teacher = _build(state, task)
        teacher.load_state_dict(state["model"])
        check_symbols(path, state, teacher, task)
    except LotteryError as error:
        raise SystemExit(f"--teacher: {error}") from None
    except RuntimeError:  # from load_state_dict: shapes differ
        raise SystemExit(
            f"--teacher {path} does not fit the data; give a model that was trained"
            " with the same dictionaries"
        ) from None
    return teacher.eval()


def _build(state: Checkpoint, task: Any) -> nn.Module:
    """Build the model of a checkpoint from checked flags.

    fairseq's own loader would evaluate some of them as Python.
    """
    classes = (TransformerModel, TransformerLanguageModel)
    arguments = checkpoint_arguments(state, classes)
    model_class = ARCH_MODEL_REGISTRY[arguments.arch]
    if not issubclass(model_class, PlantedModel):
        # The checkpoint holds the embeddings.
        vars(arguments).update(dict.fromkeys(PATHS))
    _fill_defaults(arguments, task)
    held = {
        name[: -len(ending)]: tuple(tensor.shape)
        for name, tensor in state["model"].items()
        for ending in (".weight", SCORES)
        if name.endswith(ending)
    }
    alone = issubclass(model_class, TransformerLanguageModel)
    weights = declared_weights(
        arguments,
        ("decoder",) if alone else SIDES,
        source=len(task.source_dictionary),
        target=len(task.target_dictionary),
    )
    drawn = getattr(model_class, "reservoirs", lambda _: None)(arguments) or ()
    check_declared(held, weights, file="the checkpoint", drawn=drawn)
    return model_class.build_model(arguments, task)


def _fill_defaults(arguments: Namespace, task: Any) -> None:
    """Add the flags that the checkpoint leaves out, as fairseq would."""
    ARCH_CONFIG_REGISTRY[arguments.arch](arguments)
    if not issubclass(ARCH_MODEL_REGISTRY[arguments.arch], TransformerLanguageModel):
        return
    # Its stock architecture fills in nothing, and lengths are flags of the task.
    lengths = ("max_target_positions", "tokens_per_sample")
    defaults = {name: getattr(task.args, name, None) for name in lengths}
    defaults.update(plain_defaults(TransformerLanguageModelConfig))
    for name, value in defaults.items():
        if not hasattr(arguments, name):
            setattr(arguments, name, value)
