"""Which library runs a ticket: CTranslate2 where it is installed, or fairseq."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Callable

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.runtime.classifier import Classifier, PairClassifier
from onelayer_lottery.runtime.ctranslate2_model import COMPUTE, unsupported
from onelayer_lottery.runtime.engine import check_numbers
from onelayer_lottery.runtime.language_model import LanguageModel, TextModel
from onelayer_lottery.runtime.translator import LineTranslator, Translator
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.ticket.format import Ticket, read_ticket
from onelayer_lottery.ticket.tasks import (
    LANGUAGE_MODELING,
    SENTENCE_PREDICTION,
    TRANSLATION,
    Task,
    task_of_ticket,
)

ENGINES = ("auto", "ctranslate2", "fairseq")

_INSTALL = {
    "ctranslate2": "pip install onelayer_lottery[runtime]",
    "fairseq": "README.md says how, under Install",
}


Warn = Callable[[str], None]


def load_ticket(
    path: os.PathLike | str,
    *,
    engine: str = "auto",
    compute: str = "float32",
    threads: int = 0,
    batch: int = 0,
    warn: Warn = lambda line: None,
) -> LineTranslator:
    """Read a ticket and make it ready to translate.

    >>> load_ticket("model.ticket").translate(["ein hund schläft ."])

    ``engine`` is one of ``ENGINES``: auto takes CTranslate2 where it is installed and
    can run the model, else fairseq, and says so to ``warn``. ``compute`` int8 is faster
    and rounds weights. ``threads`` and ``batch``, in sentences, are chosen if 0.
    """
    check_numbers(threads=threads, batch=batch)
    ticket = _read(path, TRANSLATION)
    options = {"threads": threads, "batch": batch}
    if _choose(ticket, engine, compute, warn) == "fairseq":
        return _fairseq("inference.fairseq_translator").Translator(ticket, **options)
    return Translator(ticket, compute=compute, **options)


def load_classifier(
    path: os.PathLike | str,
    *,
    engine: str = "auto",
    compute: str = "float32",
    threads: int = 0,
    warn: Warn = lambda line: None,
) -> PairClassifier:
    """Read a ticket of a model for sentence pairs and make it ready.

    >>> load_classifier("model.ticket").classify([("A dog sleeps.", "A dog rests.")])

    The options are those of ``load_ticket``.
    """
    check_numbers(threads=threads)
    ticket = _read(path, SENTENCE_PREDICTION)
    if _choose(ticket, engine, compute, warn) == "fairseq":
        module = _fairseq("inference.fairseq_classifier")
        return module.Classifier(ticket, threads=threads)
    return Classifier(ticket, compute=compute, threads=threads)


def load_language_model(
    path: os.PathLike | str,
    *,
    engine: str = "auto",
    compute: str = "float32",
    threads: int = 0,
    warn: Warn = lambda line: None,
) -> TextModel:
    """Read a ticket of a language model and make it ready.

    >>> model = load_language_model("model.ticket")
    >>> model.continue_text("Once upon a time")
    >>> [score.bits for score in model.score(["a line", "another"])]

    The options are those of ``load_ticket``.
    """
    check_numbers(threads=threads)
    ticket = _read(path, LANGUAGE_MODELING)
    if _choose(ticket, engine, compute, warn) == "fairseq":
        return _fairseq("inference.fairseq_lm").LanguageModel(ticket, threads=threads)
    return LanguageModel(ticket, compute=compute, threads=threads)


def check_weights(ticket: Ticket) -> int:
    """Draw all weights of a ticket, check its digests, and count its weights."""
    if unsupported(ticket.configuration()):
        model, _ = _fairseq("conversion.to_model").working_model(ticket)
        return sum(parameter.numel() for parameter in model.parameters())
    weights = ticket_model(ticket).weights.values()
    return sum(weight.size for weight in {id(w): w for w in weights}.values())


def _read(path: os.PathLike | str, wanted: Task) -> Ticket:
    ticket = read_ticket(path)
    task = task_of_ticket(ticket)
    if task is not wanted:
        hint = f"; use {task.command}" if task.command else ""
        raise LotteryError(
            f"{path} is of the task {task.name}, not {wanted.name}{hint}"
        )
    return ticket


def _choose(ticket: Ticket, engine: str, compute: str, warn: Warn) -> str:
    for name, value, choices in (
        ("engine", engine, ENGINES),
        ("compute", compute, COMPUTE),
    ):
        if value not in choices:
            raise LotteryError(f"{name} is {value}; give one of {', '.join(choices)}")
    reasons = unsupported(ticket.configuration())
    missing = engine != "fairseq" and _missing("ctranslate2")
    if engine == "ctranslate2" or (engine == "auto" and compute != "float32"):
        if missing:
            raise LotteryError(
                f"the library ctranslate2 is not installed: {_INSTALL['ctranslate2']}"
            )
        if reasons:
            raise LotteryError(
                f"CTranslate2 cannot run this model: {'; '.join(reasons)};"
                " give --engine fairseq"
            )
        return "ctranslate2"
    if engine == "fairseq":
        if compute != "float32":
            raise LotteryError(
                f"--compute {compute} is CTranslate2's; leave it out with --engine"
                " fairseq"
            )
        return "fairseq"
    if reasons:
        warn(f"CTranslate2 cannot run this model: {'; '.join(reasons)}; using fairseq")
    return "fairseq" if reasons or missing else "ctranslate2"


def _missing(library: str) -> bool:
    try:
        import_module(library)
    except ImportError:
        return True
    return False


def _fairseq(name: str) -> Any:
    missing = [library for library in ("torch", "fairseq") if _missing(library)]
    if missing:
        also = (
            f", or to translate without them ctranslate2: {_INSTALL['ctranslate2']}"
            if _missing("ctranslate2")
            else ""
        )
        raise LotteryError(
            f"this needs {' and '.join(missing)}, not installed here:"
            f" {_INSTALL['fairseq']}{also}"
        )
    return import_module(f"onelayer_lottery.{name}")
