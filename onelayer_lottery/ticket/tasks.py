"""The tasks of fairseq whose models can become tickets."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

import numpy as np

from onelayer_lottery.ticket.model import Ticket, TicketError

MASK = "<mask>"  # a symbol of RoBERTa that its dictionary files lack


class Task(NamedTuple):
    """A task of fairseq whose models can become tickets."""

    name: str
    family: str  # of stock models: transformer, roberta or transformer_lm
    flags: Tuple[str, ...]  # those that a ticket keeps
    files: Dict[str, str]  # dictionary of each side in fairseq's data folder
    embeddings: Dict[str, str]  # side of a dictionary -> layer with a row per symbol
    criterion: str  # a criterion of fairseq with which the task is trained
    criterion_class: str
    criterion_flags: Tuple[str, ...] = ()  # flags of the task that it needs
    added: str = ""  # a symbol that the task adds to its dictionary
    command: str = ""  # of onelayer-lottery that runs its models
    # Values that fairseq would take from sections that our checkpoints do not have.
    task_values: Tuple[Tuple[str, Any], ...] = ()
    criterion_values: Tuple[Tuple[str, Any], ...] = ()


TRANSLATION = Task(
    "translation",
    "transformer",
    (
        *("source_lang", "target_lang", "left_pad_source", "left_pad_target"),
        *("max_source_positions", "max_target_positions"),
    ),
    {"source": "dict.LANGUAGE.txt", "target": "dict.LANGUAGE.txt"},
    {"source": "encoder.embed_tokens", "target": "decoder.embed_tokens"},
    "label_smoothed_cross_entropy",
    "LabelSmoothedCrossEntropyCriterion",
    command="translate",
)
_ROBERTA = {"source": "encoder.sentence_encoder.embed_tokens"}
SENTENCE_PREDICTION = Task(
    "sentence_prediction",
    "roberta",
    (
        *("num_classes", "init_token", "separator_token", "max_positions"),
        *("classification_head_name", "regression_target", "shorten_method"),
        "no_shuffle",
    ),
    {"source": "input0/dict.txt", "label": "label/dict.txt"},
    _ROBERTA,
    "sentence_prediction",
    "SentencePredictionCriterion",
    ("classification_head_name", "regression_target"),
    added=MASK,
    command="classify",
    task_values=(("seed", 1),),
)
MASKED_LM = Task(
    "masked_lm",
    "roberta",
    (
        *("tokens_per_sample", "sample_break_mode", "shorten_method", "mask_prob"),
        *("leave_unmasked_prob", "random_token_prob", "freq_weighted_replacement"),
        "mask_whole_words",
    ),
    {"source": "dict.txt"},
    _ROBERTA,
    "masked_lm",
    "MaskedLmLoss",
    added=MASK,
    task_values=(("seed", 1),),
    criterion_values=(("tpu", False),),
)
LANGUAGE_MODELING = Task(
    "language_modeling",
    "transformer_lm",
    (
        *("tokens_per_sample", "max_target_positions", "sample_break_mode"),
        *("add_bos_token", "shorten_method"),
    ),
    {"source": "dict.txt"},
    {"source": "decoder.embed_tokens"},
    "cross_entropy",
    "CrossEntropyCriterion",
    command="score",
    task_values=(
        *(("seed", 1), ("batch_size", None), ("batch_size_valid", None)),
        *(("dataset_impl", None), ("data_buffer_size", 10), ("tpu", False)),
        *(("use_plasma_view", False), ("plasma_path", "")),
    ),
)
_TASKS = {
    task.name: task for task in (SENTENCE_PREDICTION, MASKED_LM, LANGUAGE_MODELING)
}


def task_named(name: Any) -> Task:
    """Return the task of a name; every task that is not listed here translates."""
    return _TASKS.get(str(name), TRANSLATION)


def task_of_ticket(ticket: Ticket) -> Task:
    """Return the task that a ticket's model was trained for."""
    return task_named(ticket.configuration().task.get("_name"))


def embedded_symbols(ticket: Ticket, task: Task, side: str) -> int:
    """Return how many symbols of a side have embeddings in the ticket."""
    layer = task.embeddings[side]
    layer = ticket.tied.get(layer, layer)
    if layer in ticket.masks:
        return ticket.masks[layer].mask.shape[0]
    for name in (f"{layer}.weight", "encoder.embed_tokens.weight"):  # or shared by all
        if ticket.dense.get(name, np.empty(())).ndim == 2:
            return ticket.dense[name].shape[0]
    raise TicketError(f"the ticket has no embeddings of its {side}")
