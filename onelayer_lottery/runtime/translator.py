"""Translating with CTranslate2: beam search as fairseq does it, several times faster.

Settings that are not fairseq's defaults anyway: at most 200 symbols a line. The padding
symbol is not suppressed: CTranslate2 would take it out before the softmax, fairseq does
after it.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.runtime.ctranslate2_model import number_words, translation_files
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.text.dictionary import EOS, PAD
from onelayer_lottery.text.pipeline import text_pipeline
from onelayer_lottery.ticket.format import Ticket

LONGEST_OUTPUT = 200  # symbols of a line, as fairseq's max_len_b
_BATCH_TOKENS = 512  # more is hardly faster, and takes several times the memory


class Translator:
    """Beam search over the model that a ticket gives."""

    def __init__(
        self,
        ticket: Ticket,
        *,
        compute: str = "float32",
        threads: int = 0,
        batch: int = 0,
    ):
        import ctranslate2

        self._text = text_pipeline(ticket)
        self._batch = (batch, "examples") if batch else (_BATCH_TOKENS, "tokens")
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
        files = translation_files(model, compute=compute)
        del model
        self._engine = ctranslate2.Translator(
            "ticket",
            device="cpu",
            files=files,
            compute_type=compute,
            intra_threads=threads,
        )

    def translate(
        self,
        sentences: List[str],
        *,
        beam: int = 5,
        warn: Callable[[str], None] = lambda line: None,
    ) -> List[str]:
        """Translate sentences, raw text in and out; an empty one stays empty."""
        sources = [self._encode(text, warn) for text in sentences]
        present = [source for source in sources if source is not None]
        found = iter(self._search(present, beam) if present else [])
        return [
            "" if source is None else self._decode(next(found)) for source in sources
        ]

    def _search(self, sources: List[List[int]], beam: int) -> List[Any]:
        size, unit = self._batch
        try:
            found = self._engine.translate_batch(
                [[self._names[symbol] for symbol in source] for source in sources],
                beam_size=beam,
                max_input_length=0,
                max_decoding_length=self._most,
                max_batch_size=size,
                batch_type=unit,
                return_scores=True,
            )
        except (RuntimeError, ValueError) as error:
            raise LotteryError(
                f"the model breaks down in beam search: {quote(error)}"
            ) from None
        if not all(math.isfinite(result.scores[0]) for result in found):
            raise LotteryError(
                "the model breaks down in beam search: its scores are not numbers"
            )
        return found

    def _decode(self, result: Any) -> str:
        symbols = [self._number[name] for name in result.hypotheses[0]]
        return self._text.decode(self._target.decode(symbols))

    def _encode(self, text: str, warn: Callable[[str], None]) -> Optional[List[int]]:
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
