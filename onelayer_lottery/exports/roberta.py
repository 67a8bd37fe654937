"""A model for sentence pairs as a folder of RoBERTa, in Hugging Face's form."""

from __future__ import annotations

import json
from typing import Dict, Iterator, List, Tuple

import numpy as np

from onelayer_lottery.exports.card import model_card
from onelayer_lottery.exports.refusal import refuse, repeated
from onelayer_lottery.exports.safetensors import safetensors
from onelayer_lottery.exports.settings import (
    ACTIVATIONS,
    SPECIAL_TOKENS,
    TARGET,
    to_json,
)
from onelayer_lottery.runtime.classifier import labels_of
from onelayer_lottery.runtime.ctranslate2_model import unsupported
from onelayer_lottery.runtime.weights import Model, ticket_model
from onelayer_lottery.text.dictionary import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    read_symbols,
)
from onelayer_lottery.text.subwords import check_subwords
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import MASK, MASKED_LM, task_of_ticket

_USE = """    from transformers import AutoModelForSequenceClassification
    model = AutoModelForSequenceClassification.from_pretrained(".")
{tokens}"""
_TOKENIZER = """    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(".")
    tokens = tokenizer("A dog sleeps.", "A dog rests.", return_tensors="pt")
    print(model(**tokens).logits)
"""
_NUMBERS = """
There is no tokenizer here: transformers has none for the subwords of this model. Its
inputs are the numbers of symbols, `<s> first </s> </s> second </s>`.
"""


def roberta_files(ticket: Ticket, version: str) -> Dict[str, bytes]:
    """The files of the folder, by name; LotteryError says why there are none."""
    refuse(TARGET, _reasons_against(ticket))
    check_subwords(ticket.bpe)
    labels = labels_of(ticket)
    model = ticket_model(ticket)
    task = ticket.configuration().task
    head = f"classification_heads.{task['classification_head_name']}"
    if labels is None:
        outputs = len(model.weights[f"{head}.out_proj.weight"])
        labels = [f"LABEL_{n}" for n in range(outputs)]
    config = {
        **SPECIAL_TOKENS,
        "model_type": "roberta",
        "architectures": ["RobertaForSequenceClassification"],
        "vocab_size": len(model.source),
        "hidden_size": model.flags.encoder_embed_dim,
        "num_hidden_layers": model.flags.encoder_layers,
        "num_attention_heads": model.flags.encoder_attention_heads,
        "intermediate_size": model.flags.encoder_ffn_embed_dim,
        "hidden_act": ACTIVATIONS[model.flags.activation_fn],
        "max_position_embeddings": model.flags.max_source_positions + PAD + 1,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "id2label": {str(n): label for n, label in enumerate(labels)},
        "label2id": {label: n for n, label in enumerate(labels)},
        "dtype": "float32",
    }
    if task.get("regression_target"):
        config["problem_type"] = "regression"
    files = {
        "model.safetensors": safetensors(dict(_tensors(model, head))),
        "config.json": to_json(config),
    }
    tokens = _NUMBERS
    if ticket.bpe and ticket.bpe.kind == "gpt2":
        files.update(_byte_level_files(ticket, model))
        tokens = _TOKENIZER
    files["README.md"] = model_card(
        ticket,
        use=_USE.format(tokens=tokens),
        precision="float32",
        version=version,
        front={
            "library_name": "transformers",
            "pipeline_tag": "text-classification",
        },
    )
    return files


def _reasons_against(ticket: Ticket) -> List[str]:
    configuration = ticket.configuration()
    flags, task = configuration.model, configuration.task
    reasons = unsupported(configuration)
    for name, wanted, reason in (
        ("encoder_normalize_before", False, "normalises after each part of a layer"),
        ("layernorm_embedding", True, "normalises embeddings"),
        ("no_scale_embedding", True, "does not scale embeddings"),
        ("encoder_learned_pos", True, "has learned positions"),
        ("pooler_activation_fn", "tanh", "has a tanh in its head"),
    ):
        if flags.get(name, wanted) != wanted:
            reasons.append(f"RoBERTa {reason}, it has {name} {flags[name]}")
    if repeated(read_symbols(ticket.dictionaries.get("source", "")).words):
        reasons.append("its dictionary has a symbol twice")
    if task_of_ticket(ticket) is MASKED_LM:
        reasons.append("it fills in masked words; only sentence pairs are exported")
        return reasons
    if (task.get("init_token"), task.get("separator_token")) != (BOS, EOS):
        reasons.append("its pairs do not begin with <s> or are not separated by </s>")
    head = f"classification_heads.{task.get('classification_head_name')}.dense"
    masked, trained = ticket.masks.get(head), ticket.dense.get(f"{head}.weight")
    inner = masked.mask if masked else np.empty(0) if trained is None else trained
    wide = len(inner) if inner.ndim == 2 else 0
    if wide != flags.get("encoder_embed_dim"):
        reasons.append(f"RoBERTa's head is as wide as the model, its is {wide} wide")
    return reasons


_LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}


def _tensors(model: Model, head: str) -> Iterator[Tuple[str, np.ndarray]]:
    weights, stack = model.weights, "encoder.sentence_encoder"
    embeddings = "roberta.embeddings"
    width = model.flags.encoder_embed_dim
    yield (
        f"{embeddings}.word_embeddings.weight",
        weights[f"{stack}.embed_tokens.weight"],
    )
    positions = weights.get(f"{stack}.embed_positions.weight")
    if positions is None:  # there are none
        positions = np.zeros((model.flags.max_source_positions + PAD + 1, width))
    yield f"{embeddings}.position_embeddings.weight", positions
    yield f"{embeddings}.token_type_embeddings.weight", np.zeros((1, width))
    pairs = [(f"{embeddings}.LayerNorm", f"{stack}.layernorm_embedding")]
    pairs += [
        (f"roberta.encoder.layer.{index}.{theirs}", f"{stack}.layers.{index}.{ours}")
        for index in range(model.flags.encoder_layers)
        for ours, theirs in _LAYER.items()
    ]
    pairs += [
        (f"classifier.{part}", f"{head}.{part}") for part in ("dense", "out_proj")
    ]
    for theirs, ours in pairs:
        for key in ("weight", "bias"):
            yield f"{theirs}.{key}", weights[f"{ours}.{key}"]


def _byte_level_files(ticket: Ticket, model: Model) -> Dict[str, bytes]:
    """RoBERTa's tokenizer: each subword with the number of its symbol."""
    assert ticket.bpe is not None
    vocabulary, merges = ticket.bpe.content.split(b"\0", 1)
    names = {str(number): name for name, number in json.loads(vocabulary).items()}
    symbols: List[str] = [
        word if word in (*SPECIAL, MASK) else names.get(word, word)
        for word in model.source.words
    ]
    return {
        "vocab.json": to_json({symbol: n for n, symbol in enumerate(symbols)}),
        "merges.txt": merges,
        "tokenizer_config.json": to_json(
            {
                "tokenizer_class": "RobertaTokenizer",
                "model_max_length": model.flags.max_source_positions,
            }
        ),
    }
