"""Classifying with fairseq's own model; needs torch and fairseq."""

from __future__ import annotations

from typing import List

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from onelayer_lottery.conversion.to_model import working_model
from onelayer_lottery.runtime.classifier import PairClassifier
from onelayer_lottery.text.dictionary import PAD, read_symbols
from onelayer_lottery.ticket.format import Ticket, TicketError
from onelayer_lottery.ticket.tasks import MASK


class Classifier(PairClassifier):
    """The stock model that a ticket gives."""

    def __init__(self, ticket: Ticket, *, threads: int = 0):
        if threads:
            torch.set_num_threads(threads)
        super().__init__(ticket)

    def _load(self, ticket: Ticket) -> None:
        self.model, _ = working_model(ticket)
        self._symbols = read_symbols(ticket.dictionaries["source"], extra=MASK)
        self._longest = min(self._longest, self.model.max_positions())
        if self._head not in self.model.classification_heads:
            raise TicketError(f"the ticket has no classification head {self._head}")

    @torch.no_grad()
    def _logits(self, rows: List[List[int]]) -> np.ndarray:
        tokens = pad_sequence(
            [torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD
        )
        scores, _ = self.model(tokens, classification_head_name=self._head)
        return scores.float().numpy()
