"""A ticket as a folder of Hugging Face's transformers: Marian, FSMT or RoBERTa.

Translators with sentencepiece become a MarianMTModel, those with Moses' tokens and BPE
an FSMTForConditionalGeneration, models of sentence pairs a
RobertaForSequenceClassification. Weights and settings of the search are such that
``generate`` finds what ``translate`` does.
"""

from __future__ import annotations

from typing import Dict

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.exports.fsmt import fsmt_files
from onelayer_lottery.exports.marian import marian_files
from onelayer_lottery.exports.roberta import roberta_files
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import (
    LANGUAGE_MODELING,
    TRANSLATION,
    task_of_ticket,
)


def huggingface_files(ticket: Ticket, *, version: str = "") -> Dict[str, bytes]:
    """The files of the folder, by name; LotteryError says why there are none."""
    task = task_of_ticket(ticket)
    if task is LANGUAGE_MODELING:
        raise LotteryError(
            "language models are not exported to Hugging Face's transformers; export to"
            " ctranslate2, or bake a checkpoint of fairseq"
        )
    if task is not TRANSLATION:
        return roberta_files(ticket, version)
    if ticket.bpe and ticket.bpe.kind == "sentencepiece":
        return marian_files(ticket, version)
    return fsmt_files(ticket, version)
