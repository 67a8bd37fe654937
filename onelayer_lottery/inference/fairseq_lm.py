"""A language model run by fairseq; needs torch and fairseq."""

from __future__ import annotations

from typing import Iterator, List

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from onelayer_lottery.conversion.to_model import working_model
from onelayer_lottery.runtime.language_model import TextModel
from onelayer_lottery.text.dictionary import EOS, read_symbols
from onelayer_lottery.ticket.format import Ticket


class LanguageModel(TextModel):
    """The model that a ticket gives: fairseq's own wherever it has such a model."""

    def __init__(self, ticket: Ticket, *, threads: int = 0):
        if threads:
            torch.set_num_threads(threads)
        super().__init__(ticket)

    def _load(self, ticket: Ticket) -> None:
        self.model, _ = working_model(ticket)
        self._symbols = read_symbols(ticket.dictionaries["source"])
        self._longest = min(self._longest, self.model.max_positions())

    @torch.no_grad()
    def _log_probabilities(self, rows: List[List[int]]) -> Iterator[np.ndarray]:
        # Nothing looks ahead: any symbol may fill the ends of rows.
        tokens = pad_sequence(
            [torch.tensor(row) for row in rows], batch_first=True, padding_value=EOS
        )
        output = self.model(tokens)
        logs = self.model.get_normalized_probs(output, log_probs=True)
        for row, found in zip(rows, logs.float().numpy()):
            yield found[: len(row)]
