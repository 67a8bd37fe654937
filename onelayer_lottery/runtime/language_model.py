"""Scoring and continuing text with the ticket of a language model."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import Callable, Deque, Iterable, Iterator, List, NamedTuple, Tuple

import numpy as np

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.runtime.ctranslate2_model import generator_files
from onelayer_lottery.runtime.engine import breakdowns, load_engine
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.text.dictionary import BOS, EOS, PAD, UNK, Symbols
from onelayer_lottery.text.pipeline import text_pipeline
from onelayer_lottery.ticket.format import Ticket, TicketError

Warn = Callable[[str], None]

_BATCH_VALUES = 1 << 24  # probabilities at a time: 64 MiB
_BATCH_SYMBOLS = 4096  # more is not faster


class LineScore(NamedTuple):
    """How well a line was predicted, its end included."""

    bits: float
    symbols: int
    characters: int


class Sampling(NamedTuple):
    """How the next symbol is drawn."""

    topk: int = 0  # from so many of the most probable symbols; 0: from all
    topp: float = 1.0  # from the fewest symbols that have this probability together
    temperature: float = 1.0


class TextModel:
    """Feeds text to a language model as in its training; engines add the model."""

    def __init__(self, ticket: Ticket):
        flags = ticket.configuration().task
        if flags.get("tokens_per_sample") is None:
            raise TicketError("the ticket does not say its tokens_per_sample")
        self._text = text_pipeline(ticket)
        self._first = [BOS] if flags.get("add_bos_token") else []
        # How --sample-break-mode cut the text: none, eos, complete or complete_doc.
        self._breaks: str = flags.get("sample_break_mode") or "none"
        self._block: int = flags["tokens_per_sample"]
        self._longest: int = flags.get("max_target_positions") or self._block
        self._symbols = Symbols()
        self._load(ticket)
        self._longest -= len(self._first)
        if self._longest < 1:
            raise TicketError("the ticket's model reads no symbol")
        self._block = min(self._block, self._longest)

    def _load(self, ticket: Ticket) -> None:
        """Set the model and its symbols."""
        raise NotImplementedError

    def _log_probabilities(self, rows: List[List[int]]) -> Iterator[np.ndarray]:
        """Yield the natural logarithms (symbols of a row, dictionary) for each row."""
        raise NotImplementedError

    def score(
        self, lines: Iterable[str], *, warn: Warn = lambda line: None
    ) -> Iterator[LineScore]:
        """Score lines of raw text, in the blocks in which fairseq-eval-lm would.

        A model that was trained on lines predicts each from its beginning. For one that
        was trained on a stream, a block may begin in the middle of a line.
        """
        if self._breaks == "complete_doc":
            raise LotteryError(
                "the model was trained on documents (--sample-break-mode complete_doc),"
                " which score does not tell apart; restore a checkpoint, and give it to"
                " fairseq-eval-lm"
            )
        return self._scores(lines, warn)

    def _scores(self, lines: Iterable[str], warn: Warn) -> Iterator[LineScore]:
        waiting: Deque[Tuple[int, int]] = deque()  # symbols and characters of lines
        bits: Deque[float] = deque()  # of the symbols of lines that wait
        last = EOS  # before the first symbol of a block

        def encoded() -> Iterator[List[int]]:
            for number, line in enumerate(lines, start=1):
                symbols = [*self._encode(line, number, warn), EOS]
                if self._breaks != "none" and len(symbols) > self._longest:
                    warn(
                        f"line {number} has {len(symbols)} symbols, more than the"
                        f" {self._longest} that the model reads; it is scored in parts"
                    )
                waiting.append((len(symbols), len(line) + 1))
                yield symbols

        blocks = self._blocks(encoded())
        while True:
            batch = list(islice(blocks, self._batch(self._block)))
            if not batch:
                return
            before = [last, *(block[-1] for block in batch)]
            last = before.pop()
            bits.extend(self._predict(before, batch))
            while waiting and len(bits) >= waiting[0][0]:
                symbols, characters = waiting.popleft()
                line = math.fsum(bits.popleft() for _ in range(symbols))
                yield LineScore(line, symbols, characters)

    def _blocks(self, lines: Iterator[List[int]]) -> Iterator[List[int]]:
        """Cut the symbols of lines as fairseq cut those of the training."""
        stream = self._breaks == "none"
        longest = self._block if stream else self._longest
        block: List[int] = []
        for line in lines:
            fits = self._breaks == "complete" and len(block + line) <= self._block
            if block and not stream and not fits:
                yield block
                block = []
            block = block + line
            while len(block) > longest:
                yield block[:longest]
                block = block[longest:]
                if not stream and len(block) <= longest:  # the end of a long line
                    yield block
                    block = []
        if block:
            yield block

    def _predict(self, before: List[int], blocks: List[List[int]]) -> Iterator[float]:
        """Yield the bits of each symbol of each block, given the symbol before it."""
        order = sorted(range(len(blocks)), key=lambda i: -len(blocks[i]))
        found: List[np.ndarray] = [np.empty(0)] * len(blocks)
        while order:
            most = self._batch(len(blocks[order[0]]))
            batch, order = order[:most], order[most:]
            rows = [[*self._first, before[i], *blocks[i][:-1]] for i in batch]
            for i, logs in zip(batch, self._log_probabilities(rows)):
                logs = logs[len(self._first) :]
                chosen = logs[range(len(blocks[i])), blocks[i]]
                found[i] = chosen.astype(np.float64) / -math.log(2)
        for values in found:
            if not np.isfinite(values).all():
                raise LotteryError(
                    "the model breaks down: its probabilities are not numbers"
                )
            yield from values.tolist()

    def _batch(self, length: int) -> int:
        """Return how many rows of a length are computed at a time."""
        room = min(_BATCH_SYMBOLS, _BATCH_VALUES // max(1, len(self._symbols)))
        return max(1, room // (length + len(self._first)))

    def continue_text(
        self,
        prompt: str,
        *,
        symbols: int = 200,
        sampling: Sampling = Sampling(),  # noqa: B008  # immutable
        seed: int = 1,
        warn: Warn = lambda line: None,
    ) -> str:
        """Return the prompt and what the model says next, at most so many symbols.

        A model that was trained on single lines stops at the end of the line; any other
        starts a new line there, and goes on.
        """
        if not prompt.strip():
            raise LotteryError("the prompt is empty; give it some words")
        lines = prompt.split("\n")
        given: List[int] = []
        for number, line in enumerate(lines, start=1):
            given += [EOS, *self._encode(line, number, warn)]
        if len(given) > self._longest:
            warn(
                f"the prompt has {len(given) - 1} symbols, of which the model sees the"
                f" last {self._longest}"
            )
        draw = np.random.Generator(np.random.Philox(seed))
        text = list(given)
        for _ in range(symbols):
            row = [*self._first, *text[-self._longest :]]
            (logs,) = self._log_probabilities([row])
            chosen = _draw(logs[-1], sampling, draw)
            if chosen == EOS and self._breaks == "eos":
                break
            text.append(chosen)
        return self._decode(text)

    def _encode(self, line: str, number: int, warn: Warn) -> List[int]:
        symbols = self._symbols.encode(self._text.encode(line))
        # Nobody trains padding: it must not be taken for a word.
        symbols = [UNK if symbol == PAD else symbol for symbol in symbols]
        unknown = symbols.count(UNK)
        if unknown:
            warn(
                f"line {number} has {unknown} symbols that the model does not know:"
                f" {quote(line[:60])}"
            )
        return symbols

    def _decode(self, text: List[int]) -> str:
        lines: List[List[int]] = []
        for symbol in text:
            if symbol == EOS:
                lines.append([])
            else:
                lines[-1].append(symbol)
        return "\n".join(
            self._text.decode(self._symbols.decode(line)) for line in lines
        )


class LanguageModel(TextModel):
    """The model run by CTranslate2."""

    def __init__(self, ticket: Ticket, *, compute: str = "float32", threads: int = 0):
        self._compute = compute
        self._threads = threads
        super().__init__(ticket)

    def _load(self, ticket: Ticket) -> None:
        model = ticket_model(ticket)
        self._symbols = model.source
        self._longest = min(self._longest, model.flags.max_target_positions)
        files = generator_files(model, compute=self._compute)
        del model
        self._engine = load_engine(
            "Generator", files, compute=self._compute, threads=self._threads
        )

    def _log_probabilities(self, rows: List[List[int]]) -> Iterator[np.ndarray]:
        with breakdowns():
            found = self._engine.forward_batch(rows, return_log_probs=True)
        for row, logs in zip(rows, np.array(found)):
            yield logs[: len(row)]


def _draw(logs: np.ndarray, sampling: Sampling, draw: np.random.Generator) -> int:
    """Draw the next symbol; padding, unknown words and the start are never drawn."""
    values = logs.astype(np.float64)
    values[[BOS, PAD, UNK]] = -np.inf
    order = np.argsort(-values, kind="stable")
    if sampling.topk:
        order = order[: sampling.topk]
    values = values[order] / sampling.temperature
    likely = np.exp(values - values.max())
    likely /= likely.sum()
    if not np.isfinite(likely).all():
        raise LotteryError("the model breaks down: its probabilities are not numbers")
    if sampling.topp < 1:
        enough = int(np.searchsorted(likely.cumsum(), sampling.topp)) + 1
        order, likely = order[:enough], likely[:enough] / likely[:enough].sum()
    place = np.searchsorted(likely.cumsum(), draw.random(), side="right")
    return int(order[min(int(place), len(order) - 1)])
