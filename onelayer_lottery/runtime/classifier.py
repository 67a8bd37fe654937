"""Classifying pairs of sentences with a ticket: all that it needs is inside."""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.runtime.ctranslate2_model import encoder_files
from onelayer_lottery.runtime.engine import breakdowns, load_engine
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.text.dictionary import EOS, PAD, Symbols, read_classes
from onelayer_lottery.text.pipeline import text_pipeline
from onelayer_lottery.ticket.format import Ticket, TicketError

Warn = Callable[[str], None]


class Prediction(NamedTuple):
    """The most probable label; of a regression its value, without a probability."""

    label: str
    probability: Optional[float]


def labels_of(ticket: Ticket) -> Optional[List[str]]:
    """The labels of a model for sentence pairs; a regression has none."""
    flags = ticket.configuration().task
    needed = ("num_classes", "classification_head_name", "max_positions")
    missing = [flag for flag in needed if flags.get(flag) is None]
    if missing:
        raise TicketError(f"the ticket does not say its {', '.join(missing)}")
    if flags.get("regression_target"):
        return None
    if "label" not in ticket.dictionaries:
        raise TicketError("the ticket has no dictionary of labels")
    return read_classes(ticket.dictionaries["label"], flags["num_classes"])


class PairClassifier:
    """Feeds pairs of sentences to a model as in its training; engines add the model."""

    def __init__(self, ticket: Ticket):
        self.labels = labels_of(ticket)
        flags = ticket.configuration().task
        self._text = text_pipeline(ticket)
        self._head = flags["classification_head_name"]
        self._before = (flags.get("init_token"), flags.get("separator_token"))
        self._longest = flags["max_positions"]
        self._symbols = Symbols()
        classes = _rows(ticket, f"classification_heads.{self._head}.out_proj")
        if classes not in (None, flags["num_classes"]):
            raise TicketError(
                f"the ticket's head {self._head} has {classes} outputs, its task"
                f" {flags['num_classes']} classes"
            )
        self._load(ticket)
        # Without the end of each sentence, and what the task puts before it.
        added = len(self._before) + sum(t is not None for t in self._before)
        self._room = self._longest - added
        if self._room < 1:
            raise TicketError(
                f"the ticket's model reads {self._longest} symbols, which leaves none"
                " for two sentences"
            )
        for token in self._before:
            if token is not None and token >= len(self._symbols):
                raise TicketError(f"the ticket has no symbol {token}, which it names")

    def _load(self, ticket: Ticket) -> None:
        """Set the model, its symbols and how many positions it has."""
        raise NotImplementedError

    def _logits(self, rows: List[List[int]]) -> np.ndarray:
        """What the head puts out (rows, classes)."""
        raise NotImplementedError

    def classify(
        self,
        pairs: List[Tuple[str, str]],
        *,
        warn: Warn = lambda line: None,
    ) -> List[Prediction]:
        """Predict the label of each pair of sentences, raw text."""
        if not pairs:
            return []
        scores = self.scores(pairs, warn=warn)
        if self.labels is None:
            return [Prediction(" ".join(f"{v:.4f}" for v in r), None) for r in scores]
        likely = np.exp(scores - scores.max(-1, keepdims=True))
        likely /= likely.sum(-1, keepdims=True)
        return [
            Prediction(self.labels[index], float(row[index]))
            for index, row in zip(likely.argmax(-1), likely)
        ]

    def scores(
        self, pairs: List[Tuple[str, str]], *, warn: Warn = lambda line: None
    ) -> np.ndarray:
        """What the head puts out (pairs, classes), before any softmax."""
        found = self._logits([self._encode(pair, warn) for pair in pairs])
        if not np.isfinite(found).all():
            raise LotteryError("the model breaks down: its scores are not numbers")
        return found

    def _encode(self, pair: Tuple[str, str], warn: Warn) -> List[int]:
        """<s> first </s> </s> second </s>, as far as the task was told to."""
        for number, sentence in enumerate(pair, start=1):
            if not sentence.strip():
                raise LotteryError(f"sentence {number} is empty")
        sides = [self._symbols.encode(self._text.encode(side)) for side in pair]
        length = sum(map(len, sides))
        if length > self._room:
            whole = length + self._longest - self._room
            warn(
                f"a pair of {whole} symbols is longer than the {self._longest} that"
                f" the model reads; the longer sentence is cut: {quote(pair[0][:60])}"
            )
        while sum(map(len, sides)) > self._room:
            (sides[0] if len(sides[0]) > len(sides[1]) else sides[1]).pop()
        return [
            token
            for before, side in zip(self._before, sides)
            for token in ([] if before is None else [before]) + [*side, EOS]
        ]


class Classifier(PairClassifier):
    """RoBERTa's encoder run by CTranslate2, its classification head by NumPy."""

    def __init__(self, ticket: Ticket, *, compute: str = "float32", threads: int = 0):
        self._compute = compute
        self._threads = threads
        super().__init__(ticket)

    def _load(self, ticket: Ticket) -> None:
        model = ticket_model(ticket)
        self._symbols = model.source
        self._longest = min(self._longest, model.flags.max_source_positions)
        start = f"classification_heads.{self._head}."
        if f"{start}dense.weight" not in model.weights:
            raise TicketError(f"the ticket has no classification head {self._head}")
        self._weights = {
            name[len(start) :]: weight
            for name, weight in model.weights.items()
            if name.startswith(start)
        }
        name = model.flags.pooler_activation_fn
        if name not in _ACTIVATIONS:
            raise TicketError(f"the activation {name} of the ticket's head is unknown")
        self._activation = _ACTIVATIONS[name]
        files = encoder_files(model, compute=self._compute)
        del model
        self._engine = load_engine(
            "Encoder", files, compute=self._compute, threads=self._threads
        )

    def _logits(self, rows: List[List[int]]) -> np.ndarray:
        # fairseq masks padding wherever it stands: as if it were not there.
        rows = [[symbol for symbol in row if symbol != PAD] for row in rows]
        with breakdowns():
            found = self._engine.forward_batch(rows)
        first = np.array(found.last_hidden_state)[:, 0]  # <s> (rows, width)
        with np.errstate(all="ignore"):
            hidden = self._activation(self._linear("dense", first))
            return self._linear("out_proj", hidden)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        weights = self._weights
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _rows(ticket: Ticket, layer: str) -> Optional[int]:
    if layer in ticket.masks:
        return ticket.masks[layer].mask.shape[0]
    weight = ticket.dense.get(f"{layer}.weight")
    if weight is None:
        return None
    if weight.ndim != 2:
        raise TicketError(f"the ticket's {layer}.weight is not a matrix")
    return weight.shape[0]


def _gelu(x: np.ndarray) -> np.ndarray:
    erf = np.vectorize(math.erf, otypes=[np.float32])
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def _gelu_accurate(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_ACTIVATIONS: Dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "linear": lambda x: x,
    "gelu": _gelu,
    "gelu_accurate": _gelu_accurate,
    "gelu_fast": _gelu_accurate,
}
