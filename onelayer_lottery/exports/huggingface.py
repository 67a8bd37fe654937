"""A ticket as a folder of Hugging Face's transformers: Marian, or RoBERTa.

Translators with sentencepiece become a MarianMTModel, models of sentence pairs a
RobertaForSequenceClassification. Weights and settings of the search are such that
``generate`` finds what ``translate`` does.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from onelayer_lottery.exports.card import model_card
from onelayer_lottery.exports.refusal import refuse, repeated
from onelayer_lottery.exports.safetensors import safetensors
from onelayer_lottery.runtime.ctranslate2_model import unsupported
from onelayer_lottery.runtime.translator import LONGEST_OUTPUT
from onelayer_lottery.runtime.weights import Model, sinusoids, ticket_model
from onelayer_lottery.text.dictionary import BOS, EOS, PAD, SPECIAL, read_classes
from onelayer_lottery.text.pipeline import describe_text
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import MASK, MASKED_LM, TRANSLATION, task_of_ticket

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "tanh": "tanh",
}
_TOKENS = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS}
_MARIAN_USE = """    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(".")
    model = AutoModelForSeq2SeqLM.from_pretrained(".")
    tokens = tokenizer(["{example}"], return_tensors="pt", padding=True)
    print(tokenizer.batch_decode(model.generate(**tokens), skip_special_tokens=True))

Do not save the model again by `save_pretrained`: it leaves out the positions, which are
not those that Marian would make.
"""
_ROBERTA_USE = """    from transformers import AutoModelForSequenceClassification
    model = AutoModelForSequenceClassification.from_pretrained(".")
{tokens}"""
_ROBERTA_TOKENS = """    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(".")
    tokens = tokenizer("A dog sleeps.", "A dog rests.", return_tensors="pt")
    print(model(**tokens).logits)
"""
_ROBERTA_NUMBERS = """
There is no tokenizer here: transformers has none for the subwords of this model. Its
inputs are the numbers of symbols, `<s> first </s> </s> second </s>`.
"""


def huggingface_files(ticket: Ticket, *, version: str = "") -> Dict[str, bytes]:
    """The files of the folder, by name; LotteryError says why there are none."""
    if task_of_ticket(ticket) is TRANSLATION:
        return _marian(ticket, version)
    return _roberta(ticket, version)


# Marian


def _marian(ticket: Ticket, version: str) -> Dict[str, bytes]:
    flags = ticket.configuration().model
    reasons = unsupported(ticket.configuration())
    if not ticket.bpe or ticket.bpe.kind != "sentencepiece":
        kind = ticket.bpe.kind if ticket.bpe else "none"
        reasons.append(
            f"Marian's tokenizer is of sentencepiece, its subwords of {kind}"
        )
    if ticket.text:
        reasons.append(
            f"Marian's tokenizer takes raw text, this model {describe_text(ticket)}"
        )
    if flags.get("encoder_normalize_before") or flags.get("decoder_normalize_before"):
        reasons.append("Marian normalises after each part of a layer, it before")
    if flags.get("layernorm_embedding"):
        reasons.append("Marian does not normalise embeddings, it does")
    if flags.get("encoder_embed_dim") != flags.get("decoder_embed_dim"):
        reasons.append("Marian has one width, it has two")
    refuse("Hugging Face's transformers", reasons)
    assert ticket.bpe is not None  # or there was a reason
    model = ticket_model(ticket)
    built = model.flags
    sides = {"encoder": model.source.words, "decoder": model.target.words}
    reasons = [
        f"its dictionary of the {side} has a symbol twice"
        for side in sides
        if repeated(sides[side])
    ]
    places = {built.max_source_positions, built.max_target_positions}
    learned = built.encoder_learned_pos or built.decoder_learned_pos
    if learned and len(places) > 1:
        reasons.append("Marian has as many positions on both sides, it has not")
    refuse("Hugging Face's transformers", reasons)
    longest = max(places)
    config: Dict[str, Any] = {
        **_TOKENS,
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "d_model": built.encoder_embed_dim,
        "activation_function": _ACTIVATIONS[built.activation_fn],
        "scale_embedding": not built.no_scale_embedding,
        "max_position_embeddings": longest,
        "vocab_size": len(model.source),
        "decoder_vocab_size": len(model.target),
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": built.share_decoder_input_output_embed,
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": EOS,
        "dtype": "float32",
    }
    for side in sides:
        config[f"{side}_layers"] = getattr(built, f"{side}_layers")
        config[f"{side}_ffn_dim"] = getattr(built, f"{side}_ffn_embed_dim")
        config[f"{side}_attention_heads"] = getattr(built, f"{side}_attention_heads")
    generation = {
        **_TOKENS,
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        "max_length": min(LONGEST_OUTPUT, built.max_target_positions - 1) + 2,
        "min_length": 2,
        "bad_words_ids": [[PAD]],
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": EOS,
    }
    task = ticket.configuration().task
    pair = [task.get("source_lang") or "source", task.get("target_lang") or "target"]
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": True,
        "source_lang": pair[0],
        "target_lang": pair[1],
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": built.max_source_positions,
    }
    example = " ".join(w.replace("\u2581", "") for w in model.source.words[4:7])
    return {
        "model.safetensors": safetensors(dict(_marian_tensors(model, longest))),
        "config.json": _json(config),
        "generation_config.json": _json(generation),
        "tokenizer_config.json": _json(tokenizer),
        "source.spm": ticket.bpe.content,
        "target.spm": ticket.bpe.content,
        "vocab.json": _json({w: n for n, w in enumerate(model.source.words)}),
        "target_vocab.json": _json({w: n for n, w in enumerate(model.target.words)}),
        "README.md": model_card(
            ticket,
            use=_MARIAN_USE.format(example=example),
            precision="float32",
            version=version,
            front={"library_name": "transformers", "pipeline_tag": "translation"},
        ),
    }


def _marian_tensors(model: Model, longest: int) -> Iterator[Tuple[str, np.ndarray]]:
    flags, weights = model.flags, model.weights
    for name, weight in weights.items():
        if ".embed_positions." not in name and "output_projection" not in name:
            yield f"model.{name}", weight
    for side in ("encoder", "decoder"):
        learned = weights.get(f"{side}.embed_positions.weight")
        if flags.no_token_positional_embeddings:
            table = np.zeros((longest, flags.encoder_embed_dim), np.float32)
        elif learned is not None:
            table = learned[PAD + 1 :]
        else:
            table = sinusoids(longest, flags.encoder_embed_dim)
        yield f"model.{side}.embed_positions.weight", table
    if not flags.share_decoder_input_output_embed:
        yield "lm_head.weight", weights["decoder.output_projection.weight"]
    yield "final_logits_bias", np.zeros((1, len(model.target)), np.float32)


# RoBERTa


def _roberta(ticket: Ticket, version: str) -> Dict[str, bytes]:
    configuration = ticket.configuration()
    flags, task = configuration.model, configuration.task
    reasons = unsupported(configuration)
    if task_of_ticket(ticket) is MASKED_LM:
        reasons.append("it fills in masked words; only sentence pairs are exported")
    for name, wanted, reason in (
        ("encoder_normalize_before", False, "normalises after each part of a layer"),
        ("layernorm_embedding", True, "normalises embeddings"),
        ("no_scale_embedding", True, "does not scale embeddings"),
        ("encoder_learned_pos", True, "has learned positions"),
        ("pooler_activation_fn", "tanh", "has a tanh in its head"),
    ):
        if flags.get(name, wanted) != wanted:
            reasons.append(f"RoBERTa {reason}, it has {name} {flags[name]}")
    if (task.get("init_token"), task.get("separator_token")) != (BOS, EOS):
        reasons.append("its pairs do not begin with <s> or are not separated by </s>")
    refuse("Hugging Face's transformers", reasons)
    model = ticket_model(ticket)
    head = f"classification_heads.{task.get('classification_head_name')}"
    inner = model.weights.get(f"{head}.dense.weight", np.empty((0, 0))).shape[0]
    width = model.flags.encoder_embed_dim
    if inner != width:
        reasons.append(f"RoBERTa's head is as wide as the model, its is {inner} wide")
    if repeated(model.source.words):
        reasons.append("its dictionary has a symbol twice")
    refuse("Hugging Face's transformers", reasons)
    classes = task["num_classes"]
    labels = (
        [f"LABEL_{n}" for n in range(classes)]
        if task.get("regression_target")
        else read_classes(ticket.dictionaries["label"], classes)
    )
    config = {
        **_TOKENS,
        "model_type": "roberta",
        "architectures": ["RobertaForSequenceClassification"],
        "vocab_size": len(model.source),
        "hidden_size": width,
        "num_hidden_layers": model.flags.encoder_layers,
        "num_attention_heads": model.flags.encoder_attention_heads,
        "intermediate_size": model.flags.encoder_ffn_embed_dim,
        "hidden_act": _ACTIVATIONS[model.flags.activation_fn],
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
        "model.safetensors": safetensors(dict(_roberta_tensors(model, head))),
        "config.json": _json(config),
    }
    tokens = _ROBERTA_NUMBERS
    if ticket.bpe and ticket.bpe.kind == "gpt2":
        files.update(_byte_level_files(ticket, model))
        tokens = _ROBERTA_TOKENS
    files["README.md"] = model_card(
        ticket,
        use=_ROBERTA_USE.format(tokens=tokens),
        precision="float32",
        version=version,
        front={
            "library_name": "transformers",
            "pipeline_tag": "text-classification",
        },
    )
    return files


_ROBERTA_LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}


def _roberta_tensors(model: Model, head: str) -> Iterator[Tuple[str, np.ndarray]]:
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
        for ours, theirs in _ROBERTA_LAYER.items()
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
        "vocab.json": _json({symbol: n for n, symbol in enumerate(symbols)}),
        "merges.txt": merges,
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "RobertaTokenizer",
                "model_max_length": model.flags.max_source_positions,
            }
        ),
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"
