"""Tickets: trained models as a seed and bits. Needs neither torch nor fairseq."""

from onelayer_lottery.ticket.format import (
    Bpe,
    FrozenTensor,
    MaskedTensor,
    Ticket,
    TicketError,
    read_ticket,
    write_ticket,
)

__all__ = [
    "Bpe",
    "FrozenTensor",
    "MaskedTensor",
    "Ticket",
    "TicketError",
    "read_ticket",
    "write_ticket",
]
