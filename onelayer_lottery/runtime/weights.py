"""The effective weights of a ticket: frozen weights drawn again, masked and scaled."""

from __future__ import annotations

import hashlib
import re
from argparse import Namespace
from typing import Dict, Iterator, List, NamedTuple, Tuple

import numpy as np

from onelayer_lottery.frozen.gains import gain_of
from onelayer_lottery.frozen.weights import (
    STREAM_VERSION,
    digest,
    frozen_weight,
    normal,
)
from onelayer_lottery.runtime.layout import Layout, Shape
from onelayer_lottery.text.dictionary import PAD, Symbols
from onelayer_lottery.ticket.declared import layer_of
from onelayer_lottery.ticket.format import Ticket, TicketError
from onelayer_lottery.ticket.signs import check_signs

_SCALES = ".masked.scales."
# Layers that may have the weight of another.
_FOLLOWERS = ("decoder.embed_tokens", "decoder.output_projection", "encoder.lm_head")
_LAYER = re.compile(r"\blayers\.\d+\b")
# The order in which fairseq builds the weights of a layer; digests follow it.
_ORDER = ("k_proj", "v_proj", "q_proj", "out_proj", "fc1", "fc2")


class Model(NamedTuple):
    """A stock model: its flags, its dictionaries and its weights by their names."""

    family: str  # one of SIDES
    flags: Namespace
    source: Symbols
    target: Symbols
    weights: Dict[str, np.ndarray]  # float32


def ticket_model(ticket: Ticket) -> Model:
    """Make the model of a ticket; whatever is wrong with it is a ``TicketError``."""
    check_signs(ticket)
    layout = Layout(ticket)
    with np.errstate(over="ignore", invalid="ignore"):  # checked at the end
        weights = _Builder(ticket, layout).weights()
    for name, weight in weights.items():
        if not np.isfinite(weight).all():
            raise TicketError(
                f"the ticket's {name} has values that 32 bits cannot hold"
            )
    return Model(layout.family, layout.flags, layout.source, layout.target, weights)


class _Builder:
    def __init__(self, ticket: Ticket, layout: Layout):
        self.ticket = ticket
        self.layout = layout

    def weights(self) -> Dict[str, np.ndarray]:
        frozen = self._reservoirs()
        weights = dict(self._masked(frozen))
        weights.update(frozen)
        self._check_digest(frozen)
        for name, shape in self.layout.others():
            weights[name] = self._other(name, shape)
        for name in self.layout.matrices:
            key = f"{name}.weight"
            if key in self.ticket.dense:
                weights[key] = self.ticket.dense[key].astype(np.float32)
            elif key not in weights:
                raise TicketError(f"the ticket has no mask for {name}")
        self._tie(weights)
        unknown = {n for n in self.ticket.dense if _SCALES not in n} - set(weights)
        if unknown:
            raise TicketError(
                f"the ticket has {min(unknown)}, which its model does not"
            )
        return weights

    def _masked(
        self, reservoirs: Dict[str, np.ndarray]
    ) -> Iterator[Tuple[str, np.ndarray]]:
        layers_of: Dict[str, List[str]] = {}
        for name, masked in self.ticket.masks.items():
            layers_of.setdefault(masked.role, []).append(name)
        for role, names in layers_of.items():
            weight = self._frozen(role)
            for name in names:
                if f"{name}.weight" in reservoirs:
                    raise TicketError(f"the ticket has a mask for {name}, a reservoir")
                value = weight * self.ticket.masks[name].factors()
                for scale in self._scales(name):
                    value *= scale
                yield f"{name}.weight", value

    def _frozen(self, role: str) -> np.ndarray:
        """Draw the frozen tensor of a role again, and check that its bits are right."""
        ticket, frozen = self.ticket, self.ticket.frozen[role]
        if frozen.values is not None:
            (mask,) = (m.mask for m in ticket.masks.values() if m.role == role)
            weight = np.zeros(frozen.shape, np.float32)
            weight[mask] = frozen.values
            return weight
        if ticket.stream != STREAM_VERSION:
            raise TicketError(
                f"the ticket's frozen weights are of stream {ticket.stream}, this"
                f" version draws stream {STREAM_VERSION}; use the version that wrote it"
            )
        weight = ticket.frozen_spec(role).draw()
        if digest(weight) != frozen.digest:
            raise TicketError(
                f"the frozen weights of {role} drawn here differ from the ticket's"
            )
        return weight

    def _scales(self, layer: str) -> List[np.ndarray]:
        rows, columns = self.ticket.masks[layer].mask.shape
        names = sorted(n for n in self.ticket.dense if n.startswith(layer + _SCALES))
        if len(names) > 2:
            raise TicketError(f"the ticket has {len(names)} scales of {layer}, not two")
        scales = [self.ticket.dense[name].astype(np.float32) for name in names]
        for scale in scales:
            if scale.shape not in {(1, 1), (rows, 1), (1, columns)}:
                raise TicketError(
                    f"the ticket's scale of {layer} has the shape {scale.shape}, its"
                    f" weight {(rows, columns)}"
                )
        return scales

    def _reservoirs(self) -> Dict[str, np.ndarray]:
        """Draw the weights that have no mask, shared by role."""
        drawn: Dict[str, np.ndarray] = {}
        found = {}
        for name, shape in self.layout.matrices.items():
            if layer_of(name) not in self.layout.reservoirs:
                continue
            role = self._role(name)
            if role not in drawn:
                drawn[role] = frozen_weight(
                    self.ticket.seed,
                    role,
                    shape=(shape[0], shape[1]),
                    init=self.ticket.init,
                    fan=self.ticket.fan,
                    gain=gain_of(name, getattr(self.layout.flags, "mask_gain", 1.0)),
                )
            found[f"{name}.weight"] = drawn[role]
        return found

    def _role(self, name: str) -> str:
        shared = getattr(self.layout.flags, "mask_share", "layers") == "layers"
        return _LAYER.sub("layers.*", name) if shared else name

    def _check_digest(self, reservoirs: Dict[str, np.ndarray]) -> None:
        stated = self.layout.configuration.digest
        if stated is None and not reservoirs:
            return
        layered = [name for name in self.layout.matrices if _LAYER.search(name)]
        digests: Dict[str, str] = {}
        for name in sorted(layered, key=_build_order):
            if f"{name}.weight" in reservoirs:
                role = self._role(name)
                if role not in digests:
                    digests[role] = digest(reservoirs[f"{name}.weight"])
            elif name in self.ticket.masks:
                role = self.ticket.masks[name].role
                digests[role] = self.ticket.frozen[role].digest
        found = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
        if found != stated:
            raise TicketError(
                "the reservoirs drawn here differ from those that the ticket states"
            )

    def _other(self, name: str, shape: Shape) -> np.ndarray:
        value = self.ticket.dense.get(name)
        if value is not None and layer_of(name) in self.layout.reservoirs:
            raise TicketError(f"the ticket has {name}, which its model does not")
        if value is not None:
            if value.shape != shape:
                raise _misshapen(name, value.shape, shape)
            return value.astype(np.float32)
        if name.endswith("embed_positions.weight"):
            std = shape[1] ** -0.5
            value = normal(self.ticket.seed, name, shape=shape, std=std)
            value[PAD] = 0
            return value
        return (np.ones if name.endswith(".weight") else np.zeros)(shape, np.float32)

    def _tie(self, weights: Dict[str, np.ndarray]) -> None:
        for name, other in self.ticket.tied.items():
            if self.layout.tied_to(name) != other:
                raise TicketError(
                    f"the ticket ties {name} to {other}, its model does not"
                )
        for name in _FOLLOWERS:
            source = self.layout.tied_to(name)
            if source:
                weights[f"{name}.weight"] = weights[f"{source}.weight"]


def _build_order(name: str) -> Tuple:
    """Where fairseq builds a weight of a layer: side, layer, part of it, weight."""
    _, side, rest = name.rpartition("decoder.layers.")
    index = int((rest if side else name.rpartition("layers.")[2]).partition(".")[0])
    last = name.rpartition(".")[2]
    part = 1 if ".encoder_attn." in name else 0 if ".self_attn." in name else 2
    return bool(side), index, part, _ORDER.index(last)


def _misshapen(name: str, found: Shape, wanted: Shape) -> TicketError:
    return TicketError(
        f"the ticket's {name} has the shape {found}, its architecture asks for {wanted}"
    )
