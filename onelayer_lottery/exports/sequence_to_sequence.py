"""What Marian and FSMT have in common: what they cannot hold, settings, weights."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from onelayer_lottery.exports.refusal import repeated
from onelayer_lottery.exports.settings import ACTIVATIONS, SPECIAL_TOKENS
from onelayer_lottery.runtime.ctranslate2_model import unsupported
from onelayer_lottery.runtime.flags import stock_flags
from onelayer_lottery.runtime.positions import sinusoids
from onelayer_lottery.runtime.translator import LONGEST_OUTPUT
from onelayer_lottery.runtime.weights import Model
from onelayer_lottery.text.dictionary import EOS, PAD, read_symbols
from onelayer_lottery.ticket.format import Ticket

SIDES = ("encoder", "decoder")


def reasons_against(ticket: Ticket, name: str) -> List[str]:
    """Why the model of a ticket does not fit into the class of this name."""
    configuration = ticket.configuration()
    flags = stock_flags(configuration)
    reasons = unsupported(configuration)
    if flags.encoder_normalize_before or flags.decoder_normalize_before:
        reasons.append(f"{name} normalises after each part of a layer, it before")
    if flags.layernorm_embedding:
        reasons.append(f"{name} does not normalise embeddings, it does")
    if flags.encoder_embed_dim != flags.decoder_embed_dim:
        reasons.append(f"{name} has one width, it has two")
    learned = flags.encoder_learned_pos or flags.decoder_learned_pos
    if learned and flags.max_source_positions != flags.max_target_positions:
        reasons.append(f"{name} has as many positions on both sides, it has not")
    for side in ("source", "target"):
        if repeated(read_symbols(ticket.dictionaries.get(side, "")).words):
            reasons.append(f"its dictionary of the {side} has a symbol twice")
    return reasons


def shape_settings(model: Model) -> Dict[str, Any]:
    """The part of config.json that says how the model is built."""
    flags = model.flags
    settings: Dict[str, Any] = {
        **SPECIAL_TOKENS,
        "is_encoder_decoder": True,
        "d_model": flags.encoder_embed_dim,
        "activation_function": ACTIVATIONS[flags.activation_fn],
        "scale_embedding": not flags.no_scale_embedding,
        "max_position_embeddings": _positions(model),
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": EOS,
        "dtype": "float32",
    }
    for side in SIDES:
        settings[f"{side}_layers"] = getattr(flags, f"{side}_layers")
        settings[f"{side}_ffn_dim"] = getattr(flags, f"{side}_ffn_embed_dim")
        settings[f"{side}_attention_heads"] = getattr(flags, f"{side}_attention_heads")
    return settings


def search_settings(model: Model) -> Dict[str, Any]:
    """What generation_config.json says: fairseq's search."""
    return {
        **SPECIAL_TOKENS,
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        "max_length": min(LONGEST_OUTPUT, model.flags.max_target_positions - 1) + 2,
        "min_length": 2,
        "bad_words_ids": [[PAD]],
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": EOS,
    }


def tensors(model: Model, *, before: int) -> Iterator[Tuple[str, np.ndarray]]:
    """All but the output; ``before`` rows of zeros precede the first position."""
    flags, weights = model.flags, model.weights
    for name, weight in weights.items():
        if ".embed_positions." not in name and "output_projection" not in name:
            yield f"model.{name}", weight
    longest, width = _positions(model), flags.encoder_embed_dim
    for side in SIDES:
        learned = weights.get(f"{side}.embed_positions.weight")
        if flags.no_token_positional_embeddings:
            table = np.zeros((longest, width), np.float32)
        elif learned is not None:
            table = learned[PAD + 1 :]
        else:
            table = sinusoids(longest, width)
        table = np.concatenate([np.zeros((before, width), np.float32), table])
        yield f"model.{side}.embed_positions.weight", table


def _positions(model: Model) -> int:
    return max(model.flags.max_source_positions, model.flags.max_target_positions)
