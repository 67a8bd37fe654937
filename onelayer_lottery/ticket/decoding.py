"""Decode a ticket, checking everything that a hostile file could get wrong.

No check relies on the digests: whoever makes a hostile file can make them right.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Optional

import numpy as np

from onelayer_lottery.errors import quote
from onelayer_lottery.frozen.weights import FANS, INITS, STREAM_VERSION
from onelayer_lottery.ticket.bits import CODINGS, decode_mask, unpack
from onelayer_lottery.ticket.container import (
    DIGEST,
    Container,
    Refusal,
    mapping,
    record,
    require,
)
from onelayer_lottery.ticket.model import (
    BPE_KINDS,
    Bpe,
    FrozenTensor,
    MaskedTensor,
    Moses,
    TextSteps,
    Ticket,
)

_MOSES_LANGUAGE = re.compile(r"[a-z]{2,3}")
_SIDE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


def decode_ticket(container: Container) -> Ticket:
    """Make the ticket of a container, or raise ``Refusal``."""
    tables, payloads = container.tables, dict(container.payloads)
    settings = _settings(tables["settings"])
    frozen = _frozen(tables["frozen"])
    masks = _masks(tables["masks"], frozen, payloads, keep=settings["keep"])
    _take_values(frozen, masks, payloads)
    tied = mapping(tables["tied"], "tied")
    for name, layer in tied.items():
        require(
            type(layer) is str and layer in masks and name not in masks,
            f"{quote(name)} cannot be tied to {quote(layer)}: the latter must be a"
            " masked layer, the former not",
        )
    bpe = None
    if tables["bpe"] is not None:
        kind = tables["bpe"]
        require(kind in BPE_KINDS, f"its bpe {quote(kind)} is unknown")
        bpe = Bpe(kind, _bytes(payloads.pop("bpe", None), "bpe"))
    dense, dictionaries = {}, {}
    for name in sorted(payloads):
        table, _, rest = name.partition("/")
        if table == "dense":
            dense[rest] = _floats(payloads[name], name)
        elif table == "dictionary" and _SIDE.fullmatch(rest):
            dictionaries[rest] = _text(payloads[name], name)
        else:
            raise Refusal(f"payload {quote(name)} belongs to nothing")
    return Ticket(
        frozen=frozen,
        masks=masks,
        tied=tied,
        dense=dense,
        config=mapping(tables["config"], "config"),
        dictionaries=dictionaries,
        bpe=bpe,
        text=_text_steps(tables.get("text")),
        stored={n: array.nbytes for n, array in sorted(container.payloads.items())},
        **settings,
    )


def _text_steps(table: Any) -> Optional[TextSteps]:
    if table is None:
        return None
    record(table, "text", {"moses": (dict, type(None)), "lower": (bool,)})
    moses = table["moses"]
    if moses is not None:
        fields = {"source": (str,), "target": (str,), "dashes": (bool,)}
        record(moses, "text's moses", fields)
        for side in ("source", "target"):
            require(
                _MOSES_LANGUAGE.fullmatch(moses[side]),
                f"its text's language {quote(moses[side])} is not a code such as de",
            )
    require(moses or table["lower"], "its text has no step")
    return TextSteps(moses and Moses(**moses), table["lower"])


def _settings(table: Any) -> Dict[str, Any]:
    types = {"seed": (int,), "init": (str,), "fan": (str,), "stream": (int,)}
    record(table, "settings", {**types, "keep": (int, float)})
    for key, valid, expected in (
        ("seed", 0 <= table["seed"] < 1 << 63, "an integer from 0 to 2^63 - 1"),
        ("init", table["init"] in INITS, f"one of {', '.join(INITS)}"),
        ("fan", table["fan"] in FANS, f"one of {', '.join(FANS)}"),
        ("keep", 0 < table["keep"] <= 1, "a fraction in (0, 1]"),
        ("stream", 1 <= table["stream"] <= STREAM_VERSION, f"at most {STREAM_VERSION}"),
    ):
        require(valid, f"its {key} is {quote(table[key])}; expected {expected}")
    return {**table, "keep": float(table["keep"])}


def _frozen(table: Any) -> Dict[str, FrozenTensor]:
    frozen = {}
    types = {"shape": (list,), "gain": (int, float), "padding": (int, type(None))}
    for role, row in mapping(table, "frozen").items():
        what = f"frozen tensor {quote(role)}"
        record(row, what, {**types, "sha256": (str,)})
        shape, gain, padding, digest = (row[key] for key in (*types, "sha256"))
        require(
            len(shape) == 2 and all(type(n) is int and n > 0 for n in shape),
            f"the {what} has shape {quote(shape)}; expected rows and columns",
        )
        require(gain > 0, f"the {what} has gain {gain}; expected one above 0")
        require(
            padding is None or 0 <= padding < shape[0],
            f"the {what} has padding {padding}; expected one of its {shape[0]} rows",
        )
        require(DIGEST.fullmatch(digest), f"the digest of the {what} is malformed")
        frozen[role] = FrozenTensor(tuple(shape), float(gain), padding, digest)
    return frozen


def _masks(
    table: Any,
    frozen: Dict[str, FrozenTensor],
    payloads: Dict[str, np.ndarray],
    *,
    keep: float,
) -> Dict[str, MaskedTensor]:
    """Decode the masks, and remove their payloads."""
    masks, idle = {}, set(frozen)
    for layer, row in mapping(table, "masks").items():
        what = f"mask of {quote(layer)}"
        record(row, what, {"role": (str,), "kept": (int,), "coding": (str,)})
        role, kept, coding = row["role"], row["kept"], row["coding"]
        require(coding in CODINGS, f"the {what} has unknown coding {quote(coding)}")
        require(role in frozen, f"the {what} has role {quote(role)}, of no tensor")
        idle.discard(role)
        shape = frozen[role].shape
        size = math.prod(shape)
        expected = round(keep * size)  # defined by the format, not by core
        require(
            kept == expected,
            f"the {what} keeps {kept} of {size}; keep {keep} means {expected}",
        )
        coded, signs = _codes(payloads, f"mask/{layer}"), None
        try:
            mask = decode_mask(coding, coded, size=size, kept=kept).reshape(shape)
            if f"signs/{layer}" in payloads:
                signs = unpack(_codes(payloads, f"signs/{layer}"), kept)
        except ValueError as error:
            raise Refusal(f"the {what} is damaged: {error}") from None
        masks[layer] = MaskedTensor(role, mask, signs)
    require(not idle, f"the frozen tensor {quote(min(idle, default=0))} has no mask")
    return masks


def _take_values(
    frozen: Dict[str, FrozenTensor],
    masks: Dict[str, MaskedTensor],
    payloads: Dict[str, np.ndarray],
) -> None:
    for role, tensor in frozen.items():
        name = f"values/{role}"
        if name in payloads:
            tensor.values = _floats(payloads.pop(name), name)
            over = [masked.mask for masked in masks.values() if masked.role == role]
            require(
                len(over) == 1 and tensor.values.shape == (np.count_nonzero(over[0]),),
                f"payload {quote(name)} does not hold one value for each kept position"
                " of one mask",
            )


def _codes(payloads: Dict[str, np.ndarray], name: str) -> np.ndarray:
    return np.frombuffer(_bytes(payloads.pop(name, None), name), np.uint8)


def _bytes(array: Optional[np.ndarray], name: str) -> bytes:
    require(array is not None, f"payload {quote(name)} is missing")
    assert array is not None
    require(
        array.dtype == np.uint8 and array.ndim == 1, f"{quote(name)} is not of bytes"
    )
    return array.tobytes()


def _text(array: np.ndarray, name: str) -> str:
    try:
        return _bytes(array, name).decode()
    except UnicodeDecodeError:
        raise Refusal(f"payload {quote(name)} is not text in UTF-8") from None


def _floats(array: np.ndarray, name: str) -> np.ndarray:
    require(array.dtype != np.uint8, f"payload {quote(name)} is not of numbers")
    require(np.isfinite(array).all(), f"payload {quote(name)} has a NaN or infinity")
    return array.astype(array.dtype.newbyteorder("="))
