"""The tensors of a ticket's model: their names and shapes, checked before any is drawn.

They have the names and shapes of the stock model's parameters. What the ticket holds is
checked against the shapes that its flags declare, so that no more memory is used than
the model needs.
"""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, Iterator, Optional, Tuple

from onelayer_lottery.errors import LotteryError
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
from onelayer_lottery.ticket.tasks import embedded_symbols, task_of_ticket

Shape = Tuple[int, ...]

_HEAD = re.compile(r"classification_heads\.([A-Za-z_]\w{0,63})\.(dense|out_proj)")
_NO_BIAS = ("embed_tokens", "output_projection", "in_dim", "out_dim")
_LEAST_WIDTH = 4  # of sinusoidal positions: fairseq divides by half of it less one


class Layout:
    """What a ticket declares; whatever contradicts it is a ``TicketError``."""

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
        self.source, self.target = self._dictionaries()
        self.matrices = dict(self._matrices(len(self.source), len(self.target)))
        drawn = drawn_layers(self.configuration, self.flags)
        self._check(drawn)
        masked = masked_reservoirs(self.configuration, self.flags)
        self.reservoirs = drawn - masked  # layers whose weights have no mask

    def others(self) -> Iterator[Tuple[str, Shape]]:
        """Yield norms, biases and positions, which a ticket holds only if trained."""
        for name, (rows, _) in self.matrices.items():
            if not name.endswith(_NO_BIAS):
                yield f"{name}.bias", (rows,)
            if name.endswith("fc2"):
                layer = name.rpartition(".")[0]
                for norm in ("self_attn", "encoder_attn", "final"):
                    if norm == "final" or f"{layer}.{norm}.q_proj" in self.matrices:
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
            if "encoder.lm_head" not in self.matrices:
                yield (
                    "encoder.lm_head.bias",
                    (self.matrices["encoder.sentence_encoder.embed_tokens"][0],),
                )

    def tied_to(self, name: str) -> Optional[str]:
        """Return the layer whose weight this one has, if it has none of its own."""
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
        source, target = symbols["source"], symbols.get("target", symbols["source"])
        if self.flags.share_all_embeddings and source.words != target.words:
            raise TicketError(
                "the ticket contradicts itself: all embeddings are shared, but its"
                " dictionaries differ"
            )
        return source, target

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

    def _held(self) -> Dict[str, Shape]:
        held: Dict[str, Shape] = {
            name: masked.mask.shape for name, masked in self.ticket.masks.items()
        }
        for name, array in self.ticket.dense.items():
            layer, _, key = name.rpartition(".")
            if key == "weight":
                held[layer] = array.shape
        return held

    def _check(self, drawn: FrozenSet[str]) -> None:
        try:
            check_declared(
                self._held(),
                iter(self.matrices.items()),
                file="the ticket",
                drawn=drawn,
            )
        except LotteryError as error:
            raise TicketError(str(error)) from None
        for name, masked in self.ticket.masks.items():
            if name not in self.matrices:
                raise TicketError(
                    f"the ticket has a mask for {name}, which its architecture"
                    f" {self.configuration.arch} does not have"
                )
            if masked.mask.shape != self.matrices[name]:
                raise TicketError(
                    f"the ticket's mask of {name} has the shape {masked.mask.shape},"
                    f" its architecture and dictionaries ask for {self.matrices[name]}"
                )
        for name in self.ticket.dense:
            layer, _, key = name.rpartition(".")
            if key == "weight" and layer in self.matrices and layer_of(layer) in drawn:
                raise TicketError(f"the ticket has {name}, which its model does not")


def _norm(name: str, width: int) -> Iterator[Tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)
