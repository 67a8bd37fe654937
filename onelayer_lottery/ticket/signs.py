"""Signs: every mask of a signed model has them, no other has."""

from __future__ import annotations

from onelayer_lottery.ticket.model import Ticket, TicketError


def check_signs(ticket: Ticket) -> None:
    """Refuse a ticket whose masks are not those of its --mask-method."""
    method = ticket.configuration().model.get("mask_method", "topk")
    for name, masked in ticket.masks.items():
        if (masked.signs is not None) != (method == "signed"):
            there = "no signs" if masked.signs is None else "signs"
            raise TicketError(
                f"the ticket has {there} for {name}, but its --mask-method is {method}"
            )
