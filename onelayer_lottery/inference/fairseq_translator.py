"""Translating with fairseq's own beam search; needs torch and fairseq."""

from __future__ import annotations

import contextlib
import ctypes
from argparse import Namespace
from typing import Any, Dict, List

import torch
from fairseq.dataclass.configs import DatasetConfig, GenerationConfig
from fairseq.hub_utils import GeneratorHubInterface
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf

from onelayer_lottery.conversion.to_model import working_model
from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.runtime.translator import Hypothesis, LineTranslator
from onelayer_lottery.text.dictionary import read_symbols
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import TRANSLATION

_BATCH = 64  # sentences: more takes several times the memory


class Translator(LineTranslator):
    """The model run by fairseq: its own wherever it has such a model."""

    def __init__(self, ticket: Ticket, *, threads: int = 0, batch: int = 0):
        if threads:
            torch.set_num_threads(threads)
        self._batch = batch or _BATCH
        super().__init__(ticket)

    def _load(self, ticket: Ticket) -> None:
        self.model, dictionaries = working_model(ticket)
        self._source, self._target = (
            read_symbols(ticket.dictionaries[side]) for side in ("source", "target")
        )
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
                    batch_size=self._batch,
                    required_batch_size_multiple=1,
                )
            ),
            tokenizer=None,
            bpe=None,
        )
        self._fairseq = GeneratorHubInterface(settings, task, [self.model])
        self._longest = self._fairseq.max_positions[0]
        _return_memory()

    def search(self, sources: List[List[int]], *, beam: int) -> List[Hypothesis]:
        try:
            found = self._fairseq.generate(
                [torch.tensor(source) for source in sources], beam=beam
            )
        except (AssertionError, IndexError, RuntimeError) as error:
            # Weights that overflow leave beam search without a hypothesis.
            raise LotteryError(
                f"the model breaks down in beam search: {quote(error)}"
            ) from None
        return [
            Hypothesis(best["tokens"].tolist()[:-1], float(best["score"]))
            for best, *_ in found
        ]


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
