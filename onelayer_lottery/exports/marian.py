"""A translator with sentencepiece as a folder of Marian, in Hugging Face's form."""

from __future__ import annotations

from typing import Dict, Iterator, Tuple

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
from onelayer_lottery.text.pipeline import describe_text
from onelayer_lottery.ticket.format import Ticket

_USE = """    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(".")
    model = AutoModelForSeq2SeqLM.from_pretrained(".")
    tokens = tokenizer(["{example}"], return_tensors="pt", padding=True)
    print(tokenizer.batch_decode(model.generate(**tokens), skip_special_tokens=True))

Do not save the model again by `save_pretrained`: it leaves out the positions, which are
not those that Marian would make.
"""


def marian_files(ticket: Ticket, version: str) -> Dict[str, bytes]:
    """The files of the folder, by name; LotteryError says why there are none."""
    reasons = reasons_against(ticket, "Marian")
    if ticket.text:
        reasons.append(
            f"Marian's tokenizer takes raw text, this model {describe_text(ticket)}"
        )
    refuse(TARGET, reasons)
    assert ticket.bpe is not None
    model = ticket_model(ticket)
    task = ticket.configuration().task
    config = {
        **shape_settings(model),
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": len(model.source),
        "decoder_vocab_size": len(model.target),
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": model.flags.share_decoder_input_output_embed,
    }
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": True,
        "source_lang": task.get("source_lang") or "source",
        "target_lang": task.get("target_lang") or "target",
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": model.flags.max_source_positions,
    }
    example = " ".join(w.replace("\u2581", "") for w in model.source.words[4:7])
    return {
        "model.safetensors": safetensors(dict(_tensors(model))),
        "config.json": to_json(config),
        "generation_config.json": to_json(search_settings(model)),
        "tokenizer_config.json": to_json(tokenizer),
        "source.spm": ticket.bpe.content,
        "target.spm": ticket.bpe.content,
        "vocab.json": to_json({w: n for n, w in enumerate(model.source.words)}),
        "target_vocab.json": to_json({w: n for n, w in enumerate(model.target.words)}),
        "README.md": model_card(
            ticket,
            use=_USE.format(example=example),
            precision="float32",
            version=version,
            front={"library_name": "transformers", "pipeline_tag": "translation"},
        ),
    }


def _tensors(model: Model) -> Iterator[Tuple[str, np.ndarray]]:
    yield from tensors(model, before=0)
    if not model.flags.share_decoder_input_output_embed:
        yield "lm_head.weight", model.weights["decoder.output_projection.weight"]
    yield "final_logits_bias", np.zeros((1, len(model.target)), np.float32)
