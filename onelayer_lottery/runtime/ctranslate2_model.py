"""CTranslate2's model of a ticket, as the bytes that its own converter would write.

Written here rather than by ``ctranslate2.specs``, which imports torch wherever it is
installed. A test compares the bytes, so that a new version of the format is noticed.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from onelayer_lottery.runtime.flags import STACKS
from onelayer_lottery.runtime.positions import sinusoids
from onelayer_lottery.runtime.weights import Model
from onelayer_lottery.text.dictionary import PAD, SPECIAL
from onelayer_lottery.ticket.configuration import Configuration
from onelayer_lottery.ticket.format import TicketError

COMPUTE = ("float32", "int8")

# The largest magnitude of an int8 weight. 127 would let the pairwise sums of CPUs
# without VNNI saturate; with 64 they cannot, and one magnitude a row is exact as well.
LARGEST_INT8 = 64

_VERSION = 6  # of the file
_REVISION = {
    "TransformerSpec": 7,
    "TransformerEncoderSpec": 1,
    "TransformerDecoderSpec": 8,
}
_DTYPES = ("float32", "int8", "int16", "int32", "float16")
_ACTIVATIONS = {"relu": 0, "gelu_accurate": 1, "gelu_fast": 1, "gelu": 3, "tanh": 5}
_LONGEST_ARRAY = (1 << 32) - 1  # bytes
_PROBE = 64  # values by which arrays that differ are told apart quickly

Variables = Dict[str, np.ndarray]


def unsupported(configuration: Configuration) -> List[str]:
    """Why CTranslate2 cannot run the model of a ticket: all reasons, or none."""
    flags = configuration.model
    reasons = []
    kind = flags.get("reservoir_type", "transformer")
    if kind != "transformer":
        reasons.append(f"its reservoirs are of type {kind}")
    activation = flags.get("activation_fn") or "relu"
    if activation not in _ACTIVATIONS:
        reasons.append(f"its activation is {activation}")
    if flags.get("no_cross_attention") or flags.get("cross_self_attention"):
        reasons.append("its decoder does not attend to the encoder in the usual way")
    if flags.get("decoder_output_dim", 0) not in (0, flags.get("decoder_embed_dim", 0)):
        reasons.append("its output is of another width than its decoder")
    if flags.get("decoder_input_dim", 0) not in (0, flags.get("decoder_embed_dim", 0)):
        reasons.append("its input is of another width than its decoder")
    if 0 in (flags.get("encoder_layers"), flags.get("decoder_layers")):
        reasons.append("one of its sides has no layers")
    return reasons


def translation_files(
    model: Model, *, compute: str = "float32", largest: int = LARGEST_INT8
) -> Dict[str, bytes]:
    """A model of CTranslate2's Translator: the files of its folder.

    The vocabularies hold the numbers of symbols: a ticket may have symbols that
    CTranslate2 would not tell apart.
    """
    return {
        "model.bin": model_bin(model, compute=compute, largest=largest),
        "config.json": _json(translation_config(add_source_eos=False)),
        "source_vocabulary.json": _json(number_words(len(model.source))),
        "target_vocabulary.json": _json(number_words(len(model.target))),
    }


def encoder_files(model: Model, *, compute: str = "float32") -> Dict[str, bytes]:
    """A model of CTranslate2's Encoder; what follows the encoder is left to others."""
    stack = STACKS["roberta"]["encoder"]
    variables = {f"encoder/{k}": v for k, v in _encoder(model, stack)}
    return {
        "model.bin": _model_bin(
            variables, "TransformerEncoderSpec", compute, LARGEST_INT8
        ),
        "config.json": _json({**_SPECIAL_TOKENS, "layer_norm_epsilon": None}),
        "vocabulary.json": _json(number_words(len(model.source))),
    }


def generator_files(model: Model, *, compute: str = "float32") -> Dict[str, bytes]:
    """A model of CTranslate2's Generator."""
    return {
        "model.bin": model_bin(model, compute=compute, largest=LARGEST_INT8),
        "config.json": _json(generator_config()),
        "vocabulary.json": _json(number_words(len(model.source))),
    }


def model_bin(model: Model, *, compute: str, largest: int) -> bytes:
    """The weights of a model as CTranslate2's converter writes them."""
    if model.family == "transformer_lm":
        variables = {f"decoder/{k}": v for k, v in _decoder(model)}
        return _model_bin(variables, "TransformerDecoderSpec", compute, largest)
    return _model_bin(_transformer(model), "TransformerSpec", compute, largest)


def number_words(count: int) -> List[str]:
    """A name for each symbol by its number; fairseq's special ones keep theirs."""
    return [*SPECIAL, *map(str, range(len(SPECIAL), count))]


_SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def translation_config(*, add_source_eos: bool) -> Dict[str, Any]:
    """What a folder of CTranslate2 says of a translation model besides its weights."""
    return {
        **_SPECIAL_TOKENS,
        "add_source_bos": False,
        "add_source_eos": add_source_eos,
        "decoder_start_token": "</s>",
        "layer_norm_epsilon": None,
        "multi_query_attention": False,
    }


def generator_config() -> Dict[str, Any]:
    """What a folder of CTranslate2 says of a language model besides its weights."""
    return {
        **_SPECIAL_TOKENS,
        "layer_norm_epsilon": None,
        "multi_query_attention": False,
    }


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# The variables of CTranslate2's Transformer.


def _transformer(model: Model) -> Variables:
    variables = {f"encoder/{k}": v for k, v in _encoder(model, "encoder")}
    variables.update((f"decoder/{k}", v) for k, v in _decoder(model))
    return variables


def _encoder(model: Model, stack: str) -> Iterator[Tuple[str, Any]]:
    yield "embeddings_0/weight", model.weights[f"{stack}.embed_tokens.weight"]
    yield "embeddings_merge", np.int8(0)
    yield "multi_query_attention", np.int8(0)
    yield from _side(model, "encoder", stack)


def _decoder(model: Model) -> Iterator[Tuple[str, Any]]:
    yield "embeddings/weight", model.weights["decoder.embed_tokens.weight"]
    yield "projection/weight", model.weights["decoder.output_projection.weight"]
    yield "alignment_layer", np.int16(-1)
    # What its converter writes; nothing reads it without an encoder.
    yield "alignment_heads", np.int16(model.family == "transformer_lm")
    for name in (
        *("alibi", "alibi_use_positive_positions", "scale_alibi"),
        "start_from_zero_embedding",
    ):
        yield name, np.int8(0)
    yield from _side(model, "decoder", "decoder")


def _side(model: Model, side: str, stack: str) -> Iterator[Tuple[str, Any]]:
    flags, weights = model.flags, model.weights
    width = getattr(flags, f"{side}_embed_dim")
    yield "num_heads", np.int16(getattr(flags, f"{side}_attention_heads"))
    yield "pre_norm", np.int8(getattr(flags, f"{side}_normalize_before"))
    yield "activation", np.int8(_ACTIVATIONS[flags.activation_fn])
    scale = 1.0 if flags.no_scale_embedding else math.sqrt(width)
    yield "scale_embeddings", np.float32(scale)
    yield "position_encodings/encodings", _positions(model, side, stack)
    for norm in ("layer_norm", "layernorm_embedding"):
        if f"{stack}.{norm}.weight" in weights:
            yield from _norm(weights, norm, f"{stack}.{norm}")
    for index in range(getattr(flags, f"{side}_layers")):
        to, layer = f"layer_{index}", f"{stack}.layers.{index}"
        attention = f"{layer}.self_attn"
        yield from _linear(
            weights,
            f"{to}/self_attention/linear_0",
            *(f"{attention}.{part}_proj" for part in "qkv"),
        )
        yield from _linear(
            weights, f"{to}/self_attention/linear_1", f"{attention}.out_proj"
        )
        yield from _norm(
            weights, f"{to}/self_attention/layer_norm", f"{attention}_layer_norm"
        )
        if f"{layer}.encoder_attn.q_proj.weight" in weights:
            attention = f"{layer}.encoder_attn"
            for number, parts in enumerate((("q",), ("k", "v"), ("out",))):
                yield from _linear(
                    weights,
                    f"{to}/attention/linear_{number}",
                    *(f"{attention}.{part}_proj" for part in parts),
                )
            yield from _norm(
                weights, f"{to}/attention/layer_norm", f"{attention}_layer_norm"
            )
        yield from _linear(weights, f"{to}/ffn/linear_0", f"{layer}.fc1")
        yield from _linear(weights, f"{to}/ffn/linear_1", f"{layer}.fc2")
        yield from _norm(weights, f"{to}/ffn/layer_norm", f"{layer}.final_layer_norm")


def _positions(model: Model, side: str, stack: str) -> np.ndarray:
    flags = model.flags
    longest = getattr(
        flags, f"max_{'source' if side == 'encoder' else 'target'}_positions"
    )
    width = getattr(flags, f"{side}_embed_dim")
    if flags.no_token_positional_embeddings:
        return np.zeros((longest, width), np.float32)
    learned = model.weights.get(f"{stack}.embed_positions.weight")
    return sinusoids(longest, width) if learned is None else learned[PAD + 1 :]


def _norm(weights: Variables, to: str, name: str) -> Iterator[Tuple[str, Any]]:
    yield f"{to}/gamma", weights[f"{name}.weight"]
    yield f"{to}/beta", weights[f"{name}.bias"]


def _linear(weights: Variables, to: str, *names: str) -> Iterator[Tuple[str, Any]]:
    for key in ("weight", "bias"):
        parts = [weights[f"{name}.{key}"] for name in names]
        yield f"{to}/{key}", np.concatenate(parts) if len(parts) > 1 else parts[0]


# The file.


def _model_bin(variables: Variables, spec: str, compute: str, largest: int) -> bytes:
    aliases = _aliases(variables)
    stored: Dict[str, np.ndarray] = {}
    for name, value in variables.items():
        if name in aliases:  # CTranslate2 finds their scales by itself
            continue
        if compute == "int8" and name.endswith("/weight"):
            stored[name], stored[f"{name}_scale"] = _quantise(value, largest)
        else:
            stored[name] = np.asarray(value)
    # Arrays are joined as they are: a copy of each would double the memory.
    parts: List[Any] = [struct.pack("<I", _VERSION), _string(spec)]
    parts.append(struct.pack("<II", _REVISION[spec], len(stored)))
    for name in sorted(stored):
        value = stored[name]
        if value.nbytes > _LONGEST_ARRAY:
            raise TicketError(f"{name} is larger than CTranslate2's format allows")
        parts.append(_string(name) + struct.pack("<B", value.ndim))
        parts.append(struct.pack(f"<{value.ndim}I", *value.shape))
        parts.append(struct.pack("<BI", _DTYPES.index(value.dtype.name), value.nbytes))
        value = value.astype(value.dtype.newbyteorder("<"), copy=False)
        parts.append(np.ascontiguousarray(value))
    parts.append(struct.pack("<I", len(aliases)))
    for name in sorted(aliases):
        parts.append(_string(name) + _string(aliases[name]))
    return b"".join(parts)


def _aliases(variables: Variables) -> Dict[str, str]:
    """Names of equal arrays, each with the first of them in alphabetical order."""
    aliases: Dict[str, str] = {}
    alike: Dict[Any, List[str]] = {}
    for name in sorted(variables):
        value = variables[name]
        if not np.ndim(value):
            continue
        probe = value.reshape(-1)[:_PROBE] + np.float32(0)  # no negative zero
        others = alike.setdefault((value.shape, probe.tobytes()), [])
        for other in others:
            if value is variables[other] or np.array_equal(value, variables[other]):
                aliases[name] = other
                break
        else:
            others.append(name)
    return aliases


def _quantise(value: np.ndarray, largest: int) -> Tuple[np.ndarray, np.ndarray]:
    """Round each row to whole numbers up to ``largest``, and the factors for it."""
    top = np.abs(value).max(axis=1)
    top[top == 0] = largest
    top = np.maximum(top, np.float32(largest) / np.finfo(np.float32).max)
    scale = (np.float32(largest) / top).astype(np.float32)
    return np.rint(value * scale[:, None]).astype(np.int8), scale


def _string(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data
