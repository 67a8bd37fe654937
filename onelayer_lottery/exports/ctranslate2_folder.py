"""A ticket as a folder of CTranslate2, the same that its own converter writes."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from onelayer_lottery.exports.card import model_card
from onelayer_lottery.exports.refusal import refuse, repeated
from onelayer_lottery.runtime.ctranslate2_model import (
    LARGEST_INT8,
    generator_config,
    model_bin,
    translation_config,
    unsupported,
)
from onelayer_lottery.runtime.weights import ticket_model
from onelayer_lottery.text.dictionary import PAD
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import (
    LANGUAGE_MODELING,
    TRANSLATION,
    task_of_ticket,
)

_USE = """    import ctranslate2
    translator = ctranslate2.Translator(".")
    translator.translate_batch([tokens], beam_size=5, max_decoding_length=200)

where `tokens` are the words of `source_vocabulary.json`{subwords}. Do not suppress the
symbol `<blank>`: the scores would change.
"""


_USE_GENERATOR = """    import ctranslate2
    generator = ctranslate2.Generator(".")
    generator.generate_batch([["</s>", *tokens]], max_length=200, sampling_topk=10)

where `tokens` are words of `vocabulary.json`{subwords}. Every line of text follows
`</s>`.
"""


def ctranslate2_files(
    ticket: Ticket, *, compute: str = "float32", version: str = ""
) -> Dict[str, bytes]:
    """The files of the folder, by name; LotteryError says why there are none."""
    reasons = unsupported(ticket.configuration())
    task = task_of_ticket(ticket)
    if task not in (TRANSLATION, LANGUAGE_MODELING):
        reasons.append(
            "it is neither a translator nor a language model, and the rest has no place"
            " in a folder"
        )
    refuse("CTranslate2", reasons)
    model = ticket_model(ticket)
    words = {"source": model.source.words, "target": model.target.words}
    config = translation_config(add_source_eos=True)
    use = _USE
    if task is LANGUAGE_MODELING:
        del words["target"]
        config, use = generator_config(), _USE_GENERATOR
    refuse(
        "CTranslate2",
        [
            f"its dictionary of the {side} has a symbol twice"
            for side in words
            if repeated(words[side])
        ],
    )
    vocabularies = {f"{side}_vocabulary": _blank(words[side]) for side in words}
    if task is LANGUAGE_MODELING:
        vocabularies = {"vocabulary": vocabularies["source_vocabulary"]}
    elif vocabularies["source_vocabulary"] == vocabularies["target_vocabulary"]:
        vocabularies = {"shared_vocabulary": vocabularies["source_vocabulary"]}
    files = {
        "model.bin": model_bin(model, compute=compute, largest=LARGEST_INT8),
        "config.json": _json(config, sort_keys=True) + b"\n",
    }
    for name, symbols in vocabularies.items():
        files[f"{name}.json"] = _json(symbols)
    subwords = ""
    if ticket.bpe:
        files["subwords"] = ticket.bpe.content
        subwords = f", which the model of {ticket.bpe.kind} in `subwords` makes"
    files["README.md"] = model_card(
        ticket,
        use=use.format(subwords=subwords),
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
