"""A translator with Moses' tokens and BPE as a folder of FSMT, in Hugging Face's form.

FSMT is fairseq's Transformer in transformers. Its tokenizer always splits words at
dashes, as WMT's recipes do.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

import numpy as np

from onelayer_lottery.exports.card import model_card
from onelayer_lottery.exports.refusal import refuse
from onelayer_lottery.exports.safetensors import safetensors
from onelayer_lottery.exports.sequence_to_sequence import (
    reasons_against,
    search_settings,
    shape_settings,
    tensors,
)
from onelayer_lottery.exports.settings import TARGET, to_json
from onelayer_lottery.runtime.weights import Model, ticket_model
from onelayer_lottery.text.dictionary import PAD, SPECIAL
from onelayer_lottery.text.pipeline import describe_text
from onelayer_lottery.text.subwords import check_subwords
from onelayer_lottery.ticket.format import Bpe, Ticket

_USE = """    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(".")
    model = AutoModelForSeq2SeqLM.from_pretrained(".")
    tokens = tokenizer(["A sentence."], return_tensors="pt", padding=True)
    print(tokenizer.batch_decode(model.generate(**tokens), skip_special_tokens=True))

The tokenizer needs sacremoses. Unlike the ticket, it leaves out control characters and
replaces the punctuation of Chinese.
"""
_VERSION = "#version:"  # subword-nmt's first line
_CONTINUED, _END = "@@", "</w>"  # of a subword inside a word, and of a last one


def fsmt_files(ticket: Ticket, version: str) -> Dict[str, bytes]:
    """The files of the folder, by name; LotteryError says why there are none."""
    reasons = [*reasons_against(ticket, "FSMT"), *_reasons_of_text(ticket)]
    refuse(TARGET, reasons)
    moses = ticket.text.moses if ticket.text else None
    check_subwords(ticket.bpe)
    assert ticket.bpe is not None
    assert moses is not None
    model = ticket_model(ticket)
    languages = [moses.source, moses.target]
    config = {
        **shape_settings(model),
        "model_type": "fsmt",
        "architectures": ["FSMTForConditionalGeneration"],
        "langs": languages,
        "src_vocab_size": len(model.source),
        "tgt_vocab_size": len(model.target),
        "tie_word_embeddings": False,  # it would tie the encoder's too
    }
    tokenizer = {
        "tokenizer_class": "FSMTTokenizer",
        "langs": languages,
        "do_lower_case": False,
        "model_max_length": model.flags.max_source_positions,
    }
    return {
        "model.safetensors": safetensors(dict(_tensors(model))),
        "config.json": to_json(config),
        "generation_config.json": to_json(search_settings(model)),
        "tokenizer_config.json": to_json(tokenizer),
        "vocab-src.json": to_json(_vocabulary(model.source.words)),
        "vocab-tgt.json": to_json(_vocabulary(model.target.words)),
        "merges.txt": _merges(ticket.bpe),
        "README.md": model_card(
            ticket,
            use=_USE,
            precision="float32",
            version=version,
            front={"library_name": "transformers", "pipeline_tag": "translation"},
        ),
    }


def _reasons_of_text(ticket: Ticket) -> List[str]:
    """Why FSMT's tokenizer would not give the symbols that the model was trained on."""
    reasons = []
    kind = ticket.bpe.kind if ticket.bpe else "none"
    if kind not in ("fastbpe", "subword_nmt"):
        reasons.append(
            "FSMT's tokenizer is of fastbpe or subword_nmt, Marian's of sentencepiece,"
            f" its subwords of {kind}"
        )
    elif kind == "subword_nmt" and _subword_nmt_version(ticket.bpe) != "0.2":
        reasons.append(
            "FSMT's tokenizer is of subword-nmt's version 0.2, its codes not"
        )
    moses = ticket.text.moses if ticket.text else None
    if not moses:
        reasons.append(
            "FSMT's tokenizer takes raw text by Moses, this model"
            f" {describe_text(ticket)}"
        )
    elif not moses.dashes:
        reasons.append(
            "FSMT's tokenizer splits words at dashes, its training data were not"
            " (--moses words)"
        )
    if ticket.text and ticket.text.lower:
        reasons.append(
            "FSMT's tokenizer lower-cases before it splits words, its training data"
            " were lower-cased after that"
        )
    return reasons


def _subword_nmt_version(bpe: Bpe | None) -> str:
    first = bpe.content.split(b"\n", 1)[0].decode(errors="replace") if bpe else ""
    return first[len(_VERSION) :].strip() if first.startswith(_VERSION) else ""


def _merges(bpe: Bpe) -> bytes:
    # Not splitlines: a merge may contain what it takes for the end of a line.
    lines = bpe.content.decode().split("\n")
    pairs = [
        " ".join(line.rstrip("\r").split(" ")[:2])
        for line in lines
        if line and _VERSION not in line
    ]
    return "".join(pair + "\n" for pair in pairs).encode()


def _vocabulary(words: List[str]) -> Dict[str, int]:
    """Symbols as FSMT spells them: it marks the last subword of a word."""
    return {
        word
        if number < len(SPECIAL)
        else word[: -len(_CONTINUED)]
        if word.endswith(_CONTINUED)
        else word + _END: number
        for number, word in enumerate(words)
    }


def _tensors(model: Model) -> Iterator[Tuple[str, np.ndarray]]:
    yield from tensors(model, before=PAD + 1)
    output = model.weights["decoder.output_projection.weight"]
    yield "model.decoder.output_projection.weight", output
