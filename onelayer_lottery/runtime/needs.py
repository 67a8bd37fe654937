"""What a ticket is for, and what it needs to run."""

from __future__ import annotations

from typing import List

from onelayer_lottery.runtime.ctranslate2_model import unsupported
from onelayer_lottery.text.pipeline import needed_libraries
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.tasks import task_of_ticket


def needs(ticket: Ticket) -> List[str]:
    """The libraries without which the model of a ticket does not run."""
    engine = ["torch", "fairseq"] if unsupported(ticket.configuration()) else []
    return [*(engine or ["ctranslate2"]), *needed_libraries(ticket)]


def command_of(ticket: Ticket) -> str:
    """What can be done with a ticket."""
    return task_of_ticket(ticket).command or "train it further"
