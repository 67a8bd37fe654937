"""Translating with CTranslate2: beam search as fairseq does it, several times faster.

Settings that are not fairseq's defaults anyway: at most 200 symbols a line. The padding
symbol is not suppressed: CTranslate2 would take it out before the softmax, fairseq does
after it.
"""

from __future__ import annotations

import math
from typing import Callable, List, NamedTuple, Optional

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.runtime.ctranslate2_model import number_words, translation_files
from onelayer_lottery.runtime.engine import breakdowns, check_numbers, load_engine
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.text.dictionary import EOS, PAD, Symbols
from onelayer_lottery.text.pipeline import text_pipeline
from onelayer_lottery.ticket.format import Ticket

LONGEST_OUTPUT = 200  # symbols of a line, as fairseq's max_len_b
_BATCH_TOKENS = 512  # more is hardly faster, and takes several times the memory

Warn = Callable[[str], None]


class Hypothesis(NamedTuple):
    """The best translation of a line."""

    symbols: List[int]  # without the end of the sentence
    score: float  # mean natural logarithm of the probabilities, as fairseq's


class LineTranslator:
    """Translates lines of raw text; engines add the model and its beam search."""

    def __init__(self, ticket: Ticket):
        self._text = text_pipeline(ticket)
        self._source, self._target = Symbols(), Symbols()
        self._longest = 0  # symbols of a line that the model reads, with its end
        self._load(ticket)

    def _load(self, ticket: Ticket) -> None:
        """Set the model, its symbols and how many it reads."""
        raise NotImplementedError

    def search(self, sources: List[List[int]], *, beam: int) -> List[Hypothesis]:
        """Return the best translation of each line of symbols."""
        raise NotImplementedError

    def translate(
        self,
        sentences: List[str],
        *,
        beam: int = 5,
        warn: Warn = lambda line: None,
    ) -> List[str]:
        """Translate sentences, raw text in and out; an empty one stays empty."""
        check_numbers(beam=beam)
        sources = [self.encode(text, warn=warn) for text in sentences]
        present = [source for source in sources if source is not None]
        found = iter(self.search(present, beam=beam) if present else [])
        return [
            "" if source is None else self._decode(next(found)) for source in sources
        ]

    def encode(
        self, text: str, *, warn: Warn = lambda line: None
    ) -> Optional[List[int]]:
        """Return the symbols of a line and its end, or None of an empty one."""
        if not text.strip():
            return None
        symbols = self._source.encode(self._text.encode(text))
        if len(symbols) + 1 > self._longest:
            warn(
                f"a line of {len(symbols) + 1} symbols is longer than the"
                f" {self._longest} that the model reads; its end is left out:"
                f" {quote(text[:60])}"
            )
            symbols = symbols[: self._longest - 1]
        # fairseq masks padding wherever it stands: as if it were not there.
        return [symbol for symbol in symbols if symbol != PAD] + [EOS]

    def _decode(self, found: Hypothesis) -> str:
        return self._text.decode(self._target.decode(found.symbols))


class Translator(LineTranslator):
    """The model run by CTranslate2."""

    def __init__(
        self,
        ticket: Ticket,
        *,
        compute: str = "float32",
        threads: int = 0,
        batch: int = 0,
    ):
        self._compute = compute
        self._threads = threads
        self._batch = (batch, "examples") if batch else (_BATCH_TOKENS, "tokens")
        super().__init__(ticket)

    def _load(self, ticket: Ticket) -> None:
        model = ticket_model(ticket)
        self._source, self._target = model.source, model.target
        self._names = number_words(max(len(model.source), len(model.target)))
        self._number = {name: i for i, name in enumerate(self._names)}
        flags = ticket.configuration().task
        self._longest = min(
            model.flags.max_source_positions,
            flags.get("max_source_positions") or model.flags.max_source_positions,
        )
        self._most = min(LONGEST_OUTPUT, model.flags.max_target_positions - 1)
        files = translation_files(model, compute=self._compute)
        del model
        self._engine = load_engine(
            "Translator", files, compute=self._compute, threads=self._threads
        )

    def search(self, sources: List[List[int]], *, beam: int) -> List[Hypothesis]:
        size, unit = self._batch
        with breakdowns(" in beam search"):
            results = self._engine.translate_batch(
                [[self._names[symbol] for symbol in source] for source in sources],
                beam_size=beam,
                max_input_length=0,
                max_decoding_length=self._most,
                max_batch_size=size,
                batch_type=unit,
                return_scores=True,
            )
        found = [
            Hypothesis(
                [self._number[name] for name in result.hypotheses[0]], result.scores[0]
            )
            for result in results
        ]
        if not all(math.isfinite(hypothesis.score) for hypothesis in found):
            raise LotteryError(
                "the model breaks down in beam search: its scores are not numbers"
            )
        return found
