"""Translating with fairseq's own beam search; needs torch and fairseq."""

from __future__ import annotations

import contextlib
import ctypes
from argparse import Namespace
from typing import Any, Callable, Dict, List, Optional

import torch
from fairseq.dataclass.configs import DatasetConfig, GenerationConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from onelayer_lottery.conversion.to_model import working_model
from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.text.pipeline import text_pipeline
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import TRANSLATION

_BATCH = 64  # sentences: more takes several times the memory


class Translator:
    """Beam search over the model that a ticket gives."""

    def __init__(self, ticket: Ticket, *, threads: int = 0, batch: int = 0):
        if threads:
            torch.set_num_threads(threads)
        model, dictionaries = working_model(ticket)
        task = TranslationTask(
            TranslationConfig(**_task_flags(ticket)),
            dictionaries.source_dictionary,
            dictionaries.target_dictionary,
        )
        settings = Namespace(
            generation=OmegaConf.structured(GenerationConfig()),
            dataset=OmegaConf.structured(
                DatasetConfig(
                    max_tokens=6000,
                    batch_size=batch or _BATCH,
                    required_batch_size_multiple=1,
                )
            ),
            tokenizer=None,
            bpe=None,
        )
        self._fairseq = GeneratorHubInterface(settings, task, [model])
        self._fairseq.bpe = text_pipeline(ticket)
        self.model = model
        _return_memory()

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
        found = iter(self._generate(present, beam) if present else [])
        return [
            "" if source is None else self._fairseq.decode(next(found)[0]["tokens"])
            for source in sources
        ]

    def _generate(self, sources: List[torch.Tensor], beam: int) -> List[Any]:
        try:
            return self._fairseq.generate(sources, beam=beam)
        except (AssertionError, IndexError, RuntimeError) as error:
            # Weights that overflow leave beam search without a hypothesis.
            raise LotteryError(
                f"the model breaks down in beam search: {quote(error)}"
            ) from None

    def _encode(self, text: str, warn: Callable[[str], None]) -> Optional[torch.Tensor]:
        if not text.strip():
            return None
        tokens = self._fairseq.encode(text)
        longest = self._fairseq.max_positions[0]
        if len(tokens) > longest:
            warn(
                f"a line of {len(tokens)} symbols is longer than the {longest} that the"
                f" model reads; its end is left out: {quote(text[:60])}"
            )
            tokens = torch.cat([tokens[: longest - 1], tokens[-1:]])
        return tokens


def _task_flags(ticket: Ticket) -> Dict[str, Any]:
    given = ticket.configuration().task
    flags = {name: given[name] for name in TRANSLATION.flags if name in given}
    for name in ("left_pad_source", "left_pad_target"):
        if name in flags:  # fairseq 0.12.2 stores them as text
            flags[name] = str(flags[name]) == "True"
    return flags


def _return_memory() -> None:
    """Give back to the system what drawing the weights has used, where it can be."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
