"""Classifying pairs of sentences with a ticket: all that it needs is inside."""

from __future__ import annotations

import os
from typing import Callable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from onelayer_lottery.container import quote
from onelayer_lottery.convert import working_model
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.framing import ticket_kind
from onelayer_lottery.subwords import build_bpe
from onelayer_lottery.tasks import SENTENCE_PREDICTION, TRANSLATION, read_classes
from onelayer_lottery.ticket import Ticket, TicketError, read_ticket


class Prediction(NamedTuple):
    """The most probable label; of a regression its value, without a probability."""

    label: str
    probability: Optional[float]


def load_classifier(path: os.PathLike | str) -> Classifier:
    """Read a ticket of a model for sentence pairs and make it ready.

    >>> load_classifier("model.ticket").classify([("A dog sleeps.", "A dog rests.")])
    """
    ticket = read_ticket(path)
    kind = ticket_kind(ticket)
    if kind is not SENTENCE_PREDICTION:
        hint = "; use translate" if kind is TRANSLATION else ""
        raise LotteryError(
            f"{path} is of the task {kind.name}, not {SENTENCE_PREDICTION.name}{hint}"
        )
    return Classifier(ticket)


class Classifier:
    """The stock model that a ticket gives, fed as in its training."""

    def __init__(self, ticket: Ticket):
        flags = ticket.configuration().task
        needed = ("num_classes", "classification_head_name", "max_positions")
        missing = [flag for flag in needed if flags.get(flag) is None]
        if missing:
            raise TicketError(f"the ticket does not say its {', '.join(missing)}")
        self.labels: Optional[List[str]] = None
        if not flags.get("regression_target"):
            if "label" not in ticket.dictionaries:
                raise TicketError("the ticket has no dictionary of labels")
            text = ticket.dictionaries["label"]
            self.labels = read_classes(text, flags["num_classes"])
        self.model, task = working_model(ticket)
        self._symbols = task.source_dictionary
        self._bpe = build_bpe(ticket.bpe)
        self._head = flags["classification_head_name"]
        if self._head not in self.model.classification_heads:
            raise TicketError(f"the ticket has no classification head {self._head}")
        self._before = (flags.get("init_token"), flags.get("separator_token"))
        for token in self._before:
            if token is not None and token >= len(self._symbols):
                raise TicketError(f"the ticket has no symbol {token}, which it names")
        self._longest = min(flags["max_positions"], self.model.max_positions())

    def classify(
        self,
        pairs: List[Tuple[str, str]],
        *,
        warn: Callable[[str], None] = lambda line: None,
    ) -> List[Prediction]:
        """Predict the label of each pair of sentences, raw text."""
        if not pairs:
            return []
        scores = self.scores(pairs, warn=warn)
        if self.labels is None:
            rows = scores.tolist()
            return [Prediction(" ".join(f"{v:.4f}" for v in row), None) for row in rows]
        probabilities, best = scores.softmax(-1).max(-1)
        return [
            Prediction(self.labels[index], probability)
            for index, probability in zip(best.tolist(), probabilities.tolist())
        ]

    @torch.no_grad()
    def scores(
        self,
        pairs: List[Tuple[str, str]],
        *,
        warn: Callable[[str], None] = lambda line: None,
    ) -> Tensor:
        """What the head puts out (pairs, classes), before any softmax."""
        rows = [self._encode(pair, warn) for pair in pairs]
        tokens = torch.full((len(rows), max(map(len, rows))), self._symbols.pad())
        for line, row in zip(tokens, rows):
            line[: len(row)] = torch.tensor(row)
        scores, _ = self.model(tokens, classification_head_name=self._head)
        return scores.float()

    def _encode(self, pair: Tuple[str, str], warn: Callable[[str], None]) -> List[int]:
        """<s> first </s> </s> second </s>, as far as the task was told to."""
        for number, sentence in enumerate(pair, start=1):
            if not sentence.strip():
                raise LotteryError(f"sentence {number} is empty")
        sides = [self._tokens(sentence) for sentence in pair]
        room = self._longest - 2 - sum(token is not None for token in self._before)
        length = sum(map(len, sides))
        if length > room:
            warn(
                f"a pair of {length + self._longest - room} symbols is longer than the"
                f" {self._longest} that the model reads; the longer sentence is cut:"
                f" {quote(pair[0][:60])}"
            )
        while sum(map(len, sides)) > room:
            (sides[0] if len(sides[0]) > len(sides[1]) else sides[1]).pop()
        end = self._symbols.eos()
        return [
            token
            for before, side in zip(self._before, sides)
            for token in ([] if before is None else [before]) + [*side, end]
        ]

    def _tokens(self, sentence: str) -> List[int]:
        pieces = self._bpe.encode(sentence) if self._bpe else sentence
        tokens = self._symbols.encode_line(
            pieces, append_eos=False, add_if_not_exist=False
        )
        return tokens.tolist()
