"""The effective weights of a ticket: frozen weights drawn again, masked and scaled.

They have the names and shapes of the stock model's parameters. What the ticket says is
checked against the shapes that its flags declare before anything is drawn, so that no
more memory is used than the model needs.
"""

from __future__ import annotations

import hashlib
import re
from argparse import Namespace
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.frozen.gains import gain_of
from onelayer_lottery.frozen.weights import (
    STREAM_VERSION,
    digest,
    frozen_weight,
    normal,
)
from onelayer_lottery.runtime.flags import (
    SIDES,
    STACKS,
    drawn_layers,
    family_of,
    masked_reservoirs,
    stock_flags,
)
from onelayer_lottery.text.dictionary import PAD, Symbols, read_symbols
from onelayer_lottery.ticket.declared import (
    check_declared,
    declared_weights,
    layer_of,
)
from onelayer_lottery.ticket.format import Ticket, TicketError
from onelayer_lottery.ticket.signs import check_signs
from onelayer_lottery.ticket.tasks import embedded_symbols, task_of_ticket

Shape = Tuple[int, ...]

_SCALES = ".masked.scales."
_HEAD = re.compile(r"classification_heads\.([A-Za-z_]\w{0,63})\.(dense|out_proj)")
_NO_BIAS = ("embed_tokens", "output_projection", "in_dim", "out_dim")
_LAYER = re.compile(r"\blayers\.\d+\b")
_LEAST_WIDTH = 4  # of sinusoidal positions: fairseq divides by half of it less one
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
    with np.errstate(over="ignore", invalid="ignore"):  # checked at the end
        return _Builder(ticket).model()


def sinusoids(positions: int, width: int) -> np.ndarray:
    """Fairseq's sinusoidal positions (positions, width), from the first word's on."""
    half = width // 2
    step = np.log(10000) / (half - 1)
    rates = np.exp(np.arange(half, dtype=np.float32) * np.float32(-step))
    places = np.arange(PAD + 1, PAD + 1 + positions, dtype=np.float32)
    angles = places[:, None] * rates
    table = np.zeros((positions, width), np.float32)
    np.sin(angles, out=table[:, :half])
    np.cos(angles, out=table[:, half : 2 * half])
    return table


class _Builder:
    def __init__(self, ticket: Ticket):
        self.ticket = ticket
        self.configuration = ticket.configuration()
        self.family = family_of(self.configuration.arch)
        self.flags = stock_flags(self.configuration)
        self.task = task_of_ticket(ticket)
        if self.task.family != self.family:
            raise TicketError(
                f"the ticket contradicts itself: a {self.family} for {self.task.name}"
            )

    def model(self) -> Model:
        check_signs(self.ticket)
        source, target = self._dictionaries()
        matrices = dict(self._matrices(len(source), len(target)))
        drawn = self._check(matrices)
        masked = masked_reservoirs(self.configuration, self.flags)
        frozen = self._reservoirs(matrices, drawn - masked)
        weights = dict(self._masked(frozen))
        weights.update(frozen)
        self._check_digest(matrices, frozen)
        for name, shape in self._others(matrices):
            layer = layer_of(name)
            fixed = layer in drawn and layer not in masked
            weights[name] = self._other(name, shape, fixed=fixed)
        for name in matrices:
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
        for name, weight in weights.items():
            if not np.isfinite(weight).all():
                raise TicketError(
                    f"the ticket's {name} has values that 32 bits cannot hold"
                )
        return Model(self.family, self.flags, source, target, weights)

    # What is declared.

    def _matrices(self, source: int, target: int) -> Iterator[Tuple[str, Shape]]:
        yield from declared_weights(
            self.flags, SIDES[self.family], source=source, target=target
        )
        if self.family != "roberta":
            return
        width = self.flags.encoder_embed_dim
        held = self._held()
        heads = {found[1] for found in map(_HEAD.fullmatch, held) if found}
        for head in sorted(heads):
            parts = [f"classification_heads.{head}.{p}" for p in ("dense", "out_proj")]
            dense, out = (held.get(part, ()) for part in parts)
            if len(dense) != 2 or dense[1] != width or out[1:] != dense[:1]:
                raise TicketError(
                    f"the ticket's classification head {head} is malformed"
                )
            yield parts[0], dense
            yield parts[1], out

    def _others(self, matrices: Dict[str, Shape]) -> Iterator[Tuple[str, Shape]]:
        """Norms, biases and positions, which a ticket holds only if trained."""
        for name, (rows, _) in matrices.items():
            if not name.endswith(_NO_BIAS):
                yield f"{name}.bias", (rows,)
            if name.endswith("fc2"):
                layer = name.rpartition(".")[0]
                for norm in ("self_attn", "encoder_attn", "final"):
                    if norm == "final" or f"{layer}.{norm}.q_proj" in matrices:
                        yield from _norm(f"{layer}.{norm}_layer_norm", rows)
        for side, stack in STACKS[self.family].items():
            width = getattr(self.flags, f"{side}_embed_dim")
            final = side == "encoder" or not self.flags.no_decoder_final_norm
            if getattr(self.flags, f"{side}_normalize_before") and final:
                yield from _norm(f"{stack}.layer_norm", width)
            if self.flags.layernorm_embedding:
                yield from _norm(f"{stack}.layernorm_embedding", width)
            if not self.flags.no_token_positional_embeddings:
                place = "source" if side == "encoder" else "target"
                positions = getattr(self.flags, f"max_{place}_positions")
                learned = getattr(self.flags, f"{side}_learned_pos")
                if learned:
                    shape = (positions + PAD + 1, width)
                    yield f"{stack}.embed_positions.weight", shape
                elif width < _LEAST_WIDTH:
                    raise TicketError(
                        f"the ticket contradicts itself: its {side} has sinusoidal"
                        f" positions of width {width}"
                    )
        if self.family == "roberta":
            yield from _norm("encoder.lm_head.layer_norm", self.flags.encoder_embed_dim)
            if "encoder.lm_head" not in matrices:
                yield (
                    "encoder.lm_head.bias",
                    (matrices["encoder.sentence_encoder.embed_tokens"][0],),
                )

    def _held(self) -> Dict[str, Shape]:
        held: Dict[str, Shape] = {
            name: masked.mask.shape for name, masked in self.ticket.masks.items()
        }
        for name, array in self.ticket.dense.items():
            layer, _, key = name.rpartition(".")
            if key == "weight":
                held[layer] = array.shape
        return held

    def _check(self, matrices: Dict[str, Shape]) -> FrozenSet[str]:
        drawn = drawn_layers(self.configuration, self.flags)
        try:
            check_declared(
                self._held(), iter(matrices.items()), file="the ticket", drawn=drawn
            )
        except LotteryError as error:
            raise TicketError(str(error)) from None
        for name, masked in self.ticket.masks.items():
            if name not in matrices:
                raise TicketError(
                    f"the ticket has a mask for {name}, which its architecture"
                    f" {self.configuration.arch} does not have"
                )
            if masked.mask.shape != matrices[name]:
                raise TicketError(
                    f"the ticket's mask of {name} has the shape {masked.mask.shape},"
                    f" its architecture and dictionaries ask for {matrices[name]}"
                )
        for name in self.ticket.dense:
            layer, _, key = name.rpartition(".")
            if key == "weight" and layer in matrices and layer_of(layer) in drawn:
                raise TicketError(f"the ticket has {name}, which its model does not")
        return drawn

    def _dictionaries(self) -> Tuple[Symbols, Symbols]:
        symbols = {}
        for side in self.task.embeddings:
            if side not in self.ticket.dictionaries:
                raise TicketError(f"the ticket has no dictionary of its {side}")
            try:
                symbols[side] = read_symbols(
                    self.ticket.dictionaries[side],
                    most=embedded_symbols(self.ticket, self.task, side),
                    extra=self.task.added,
                )
            except TicketError:
                raise
            except LotteryError as error:
                raise TicketError(
                    f"the ticket's dictionary of its {side}: {error}"
                ) from None
        return symbols["source"], symbols.get("target", symbols["source"])

    # What is drawn.

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
        scales = [self.ticket.dense[name].astype(np.float32) for name in names]
        for scale in scales:
            if scale.shape not in {(1, 1), (rows, 1), (1, columns)}:
                raise TicketError(
                    f"the ticket's scale of {layer} has the shape {scale.shape}, its"
                    f" weight {(rows, columns)}"
                )
        return scales

    def _reservoirs(
        self, matrices: Dict[str, Shape], layers: FrozenSet[str]
    ) -> Dict[str, np.ndarray]:
        """Draw the weights that have no mask, shared by role."""
        drawn: Dict[str, np.ndarray] = {}
        found = {}
        for name, shape in matrices.items():
            if layer_of(name) not in layers:
                continue
            role = self._role(name)
            if role not in drawn:
                drawn[role] = frozen_weight(
                    self.ticket.seed,
                    role,
                    shape=(shape[0], shape[1]),
                    init=self.ticket.init,
                    fan=self.ticket.fan,
                    gain=gain_of(name, getattr(self.flags, "mask_gain", 1.0)),
                )
            found[f"{name}.weight"] = drawn[role]
        return found

    def _role(self, name: str) -> str:
        shared = getattr(self.flags, "mask_share", "layers") == "layers"
        return _LAYER.sub("layers.*", name) if shared else name

    def _check_digest(
        self, matrices: Dict[str, Shape], reservoirs: Dict[str, np.ndarray]
    ) -> None:
        stated = self.configuration.digest
        if stated is None and not reservoirs:
            return
        layered = [name for name in matrices if _LAYER.search(name)]
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

    def _other(self, name: str, shape: Shape, *, fixed: bool) -> np.ndarray:
        value = self.ticket.dense.get(name)
        if value is not None and fixed:
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
            if self._tied_to(name) != other:
                raise TicketError(
                    f"the ticket ties {name} to {other}, its model does not"
                )
        for name in ("decoder.embed_tokens", "decoder.output_projection"):
            source = self._tied_to(name)
            if source:
                weights[f"{name}.weight"] = weights[f"{source}.weight"]
        if self.family == "roberta" and not self.flags.untie_weights_roberta:
            stack = STACKS["roberta"]["encoder"]
            weights["encoder.lm_head.weight"] = weights[f"{stack}.embed_tokens.weight"]

    def _tied_to(self, name: str) -> Optional[str]:
        if name == "encoder.lm_head" and self.family == "roberta":
            untied = self.flags.untie_weights_roberta
            return None if untied else "encoder.sentence_encoder.embed_tokens"
        if self.family == "roberta":
            return None
        if self.flags.share_all_embeddings:
            followers = ("decoder.embed_tokens", "decoder.output_projection")
            return "encoder.embed_tokens" if name in followers else None
        if self.flags.share_decoder_input_output_embed:
            tied = name == "decoder.output_projection"
            return "decoder.embed_tokens" if tied else None
        return None


def _norm(name: str, width: int) -> Iterator[Tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


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
