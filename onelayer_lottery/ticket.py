"""The ticket: a trained model as a seed and bits, in one file that needs no trust.

docs/ticket-format.md defines the file, a safetensors container. No check here relies on
the digests being right: whoever makes a hostile file can make them so.
"""

from __future__ import annotations

import io
import math
import operator
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

import numpy as np

from onelayer_lottery.bits import CODINGS, decode_mask, encode_mask, pack, unpack
from onelayer_lottery.configuration import Configuration, check_configuration
from onelayer_lottery.container import (
    DIGEST,
    Container,
    Refusal,
    framed,
    mapping,
    open_container,
    parse_container,
    quote,
    record,
    require,
    write_whole,
)
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.frozen import FANS, INITS, STREAM_VERSION

BPE_KINDS = ("sentencepiece", "fastbpe", "subword_nmt", "gpt2")

_SIDE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
# What Python raises on a ticket whose fields are not of the types they should be.
_MALFORMED = (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


class TicketError(LotteryError):
    """A ticket cannot be read or written."""


@dataclass
class FrozenTensor:
    """The tensor of a role: drawn again from the seed, or imported."""

    shape: Tuple[int, int]
    gain: float  # factor on the init's scale
    padding: Optional[int]  # row that is zero
    digest: str  # SHA-256 of the whole weight as fp32, padding row zeroed
    values: Optional[np.ndarray] = None  # imported: the kept values, row by row


@dataclass
class MaskedTensor:
    """The mask of a layer over the frozen tensor of its role."""

    role: str
    mask: np.ndarray  # bool, shape of the frozen tensor
    signs: Optional[np.ndarray] = None  # bool, of each kept position: weight is turned

    def factors(self) -> np.ndarray:
        """What each frozen weight is multiplied by: 0, 1 or -1."""
        found = self.mask.astype(np.int8)
        if self.signs is not None:
            found[self.mask] -= 2 * self.signs.astype(np.int8)
        return found


@dataclass
class Bpe:
    """The file of a subword model."""

    kind: str  # one of BPE_KINDS
    content: bytes


@dataclass
class Ticket:
    """All that is needed to build the model again, and to feed it text."""

    seed: int
    init: str
    fan: str
    keep: float
    stream: int  # version of the drawing of frozen weights
    frozen: Dict[str, FrozenTensor]  # by role
    masks: Dict[str, MaskedTensor]  # by layer
    tied: Dict[str, str]  # other name of a masked layer -> its name in masks
    dense: Dict[str, np.ndarray]  # float32 or float16, by tensor name
    config: Dict[str, Any]  # JSON, as it is in the file: see ``configuration``
    dictionaries: Dict[str, str]  # text, by side
    bpe: Optional[Bpe] = None

    def configuration(self) -> Configuration:
        """The configuration, checked; nothing else of ``config`` may be used."""
        try:
            checked = check_configuration(self.config)
            for name in ("seed", "init", "fan", "keep"):
                stated = getattr(self, name)
                require(
                    checked.model.get(f"mask_{name}", stated) == stated,
                    f"its mask_{name} contradicts its settings",
                )
        except Refusal as refusal:
            raise TicketError(f"the ticket cannot be used: {refusal}") from None
        return checked


def write_ticket(
    ticket: Ticket, path: os.PathLike | str, *, force: bool = False
) -> int:
    """Write a ticket whole or not at all, and return its size in bytes.

    An existing file is replaced only with ``force``. What ``read_ticket`` would refuse
    is not written.
    """
    path = Path(path)
    with _naming("write", path):
        if path.exists() and not force:
            raise TicketError(f"{path} exists, pass --force to replace it")
        content = _content(ticket)
        _ticket(parse_container(io.BytesIO(content), len(content)))
        write_whole(path, content)
    return len(content)


def read_ticket(path: os.PathLike | str) -> Ticket:
    """Read a ticket; whatever is wrong with the file is a ``TicketError``."""
    with _naming("read", path):
        return _ticket(open_container(Path(path)))


def stored_bytes(path: os.PathLike | str) -> Dict[str, int]:
    """Bytes of each payload of a ticket, by its name; the header is not counted."""
    with _naming("read", path):
        payloads = open_container(Path(path)).payloads
    return {name: payloads[name].nbytes for name in sorted(payloads)}


@contextmanager
def _naming(verb: str, path: os.PathLike | str) -> Iterator[None]:
    """Turn what goes wrong with a file into one sentence about it."""
    try:
        yield
    except Refusal as refusal:
        raise TicketError(f"cannot {verb} {path}: {refusal}") from None
    except OSError as error:
        raise TicketError(f"cannot {verb} {path}: {error.strerror or error}") from None


# Writing. Most checks are those of reading: what was laid out is read back.


def _content(ticket: Ticket) -> bytes:
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
        tables = {
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
        return framed(tables, payloads)
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


# Reading: what a hostile file with right digests could still get wrong.


def _ticket(container: Container) -> Ticket:
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
        kind, _, rest = name.partition("/")
        if kind == "dense":
            dense[rest] = _floats(payloads[name], name)
        elif kind == "dictionary" and _SIDE.fullmatch(rest):
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
        **settings,
    )


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
    """Decode the masks; their payloads are taken away."""
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
        expected = round(keep * size)  # of the format, and so not from mask.py
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
