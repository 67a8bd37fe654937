"""A ticket as a folder of CTranslate2, the same that its own converter writes."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from onelayer_lottery.exports.card import model_card
from onelayer_lottery.exports.refusal import refuse, repeated
from onelayer_lottery.runtime.ctranslate2_model import (
    LARGEST_INT8,
    model_bin,
    translation_config,
    unsupported,
)
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.text.dictionary import PAD
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import TRANSLATION, task_of_ticket

_USE = """    import ctranslate2
    translator = ctranslate2.Translator(".")
    translator.translate_batch([tokens], beam_size=5, max_decoding_length=200)

where `tokens` are the words of `source_vocabulary.json`{subwords}. Do not suppress the
symbol `<blank>`: the scores would change.
"""


def ctranslate2_files(
    ticket: Ticket, *, compute: str = "float32", version: str = ""
) -> Dict[str, bytes]:
    """The files of the folder, by name; LotteryError says why there are none."""
    reasons = unsupported(ticket.configuration())
    if task_of_ticket(ticket) is not TRANSLATION:
        reasons.append("it is not a translator, and the rest has no place in a folder")
    refuse("CTranslate2", reasons)
    model = ticket_model(ticket)
    words = {"source": model.source.words, "target": model.target.words}
    refuse(
        "CTranslate2",
        [
            f"its dictionary of the {side} has a symbol twice"
            for side in words
            if repeated(words[side])
        ],
    )
    vocabularies = {side: _blank(words[side]) for side in words}
    if vocabularies["source"] == vocabularies["target"]:
        vocabularies = {"shared": vocabularies["source"]}
    files = {
        "model.bin": model_bin(model, compute=compute, largest=LARGEST_INT8),
        "config.json": _json(translation_config(add_source_eos=True), sort_keys=True)
        + b"\n",
    }
    for name, symbols in vocabularies.items():
        files[f"{name}_vocabulary.json"] = _json(symbols)
    subwords = ""
    if ticket.bpe:
        files["subwords"] = ticket.bpe.content
        subwords = f", which the model of {ticket.bpe.kind} in `subwords` makes"
    files["README.md"] = model_card(
        ticket,
        use=_USE.format(subwords=subwords),
        precision=compute,
        version=version,
        front={},
    )
    return files


def _blank(words: List[str]) -> List[str]:
    """CTranslate2's name of the padding symbol is another."""
    return [*words[:PAD], "<blank>", *words[PAD + 1 :]]


def _json(value: Any, **options: Any) -> bytes:
    return json.dumps(value, indent=2, **options).encode()
