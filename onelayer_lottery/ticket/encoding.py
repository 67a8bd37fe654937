"""Encode a ticket as the bytes of its file; docs/ticket-format.md defines them."""

from __future__ import annotations

import operator
from dataclasses import asdict
from typing import Any, Dict, Tuple

import numpy as np

from onelayer_lottery.errors import quote
from onelayer_lottery.ticket.bits import encode_mask, pack
from onelayer_lottery.ticket.container import Refusal, encode_container, require
from onelayer_lottery.ticket.model import FrozenTensor, Ticket

# What Python raises on a ticket with fields of wrong types.
_MALFORMED = (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def encode_ticket(ticket: Ticket) -> bytes:
    """Return the bytes of a ticket's file; equal tickets give equal bytes.

    Most checks are left to the decoder.
    """
    try:
        masks, payloads = _coded_masks(ticket)
        for name, array in ticket.dense.items():
            payloads[f"dense/{name}"] = array
        for role, frozen in ticket.frozen.items():
            if frozen.values is not None:
                payloads[f"values/{role}"] = frozen.values
        for side, text in ticket.dictionaries.items():
            payloads[f"dictionary/{side}"] = np.frombuffer(text.encode(), np.uint8)
        if ticket.bpe:
            payloads["bpe"] = np.frombuffer(ticket.bpe.content, np.uint8)
        tables: Dict[str, Any] = {
            "settings": {
                "seed": operator.index(ticket.seed),
                "init": ticket.init,
                "fan": ticket.fan,
                "keep": float(ticket.keep),
                "stream": operator.index(ticket.stream),
            },
            "frozen": {role: _frozen_row(f) for role, f in ticket.frozen.items()},
            "masks": masks,
            "tied": ticket.tied,
            "config": ticket.config,
            "bpe": ticket.bpe and ticket.bpe.kind,
        }
        if ticket.text:
            tables["text"] = asdict(ticket.text)
        return encode_container(tables, payloads)
    except _MALFORMED as error:
        raise Refusal(f"the ticket is malformed: {quote(str(error))}") from None


def _coded_masks(ticket: Ticket) -> Tuple[Dict[str, Any], Dict[str, np.ndarray]]:
    table, payloads = {}, {}
    for layer, masked in ticket.masks.items():
        mask, frozen = masked.mask, ticket.frozen.get(masked.role)
        require(
            mask.dtype == bool and (not frozen or mask.shape == tuple(frozen.shape)),
            f"the mask of {quote(layer)} is {mask.dtype} of shape {mask.shape}, not"
            " bool of the shape of its frozen tensor",
        )
        coding, payloads[f"mask/{layer}"] = encode_mask(mask)
        kept = int(np.count_nonzero(mask))
        if masked.signs is not None:
            require(
                masked.signs.dtype == bool and masked.signs.shape == (kept,),
                f"the signs of {quote(layer)} are not one bool for each kept position",
            )
            payloads[f"signs/{layer}"] = pack(masked.signs)
        table[layer] = {"role": masked.role, "kept": kept, "coding": coding}
    return table, payloads


def _frozen_row(frozen: FrozenTensor) -> Dict[str, Any]:
    padding = frozen.padding
    return {
        "shape": [operator.index(length) for length in frozen.shape],
        "gain": float(frozen.gain),
        "padding": None if padding is None else operator.index(padding),
        "sha256": frozen.digest,
    }
