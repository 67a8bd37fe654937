"""The README of an exported model: what it is, where it came from, how it is used."""

from __future__ import annotations

from typing import Any, Dict

from onelayer_lottery.text.pipeline import describe_text
from onelayer_lottery.ticket.format import Ticket
from onelayer_lottery.ticket.inspection import inspect_ticket
from onelayer_lottery.ticket.tasks import LANGUAGE_MODELING, task_of_ticket

_CARD = """{head}# {title}

A {what}. Its weights are random, drawn from a seed, under learned
binary masks; this folder holds them multiplied out, in {precision}. It was made from a
ticket by onelayer_lottery {version}:

    {signature}

| | |
|---|---|
| architecture | {architecture} |
| masks | {masks}, {kept} of {positions} weights kept |
| values trained besides | {trained} |
| text | {text} |

## Use

{use}
"""


def model_card(
    ticket: Ticket,
    *,
    use: str,
    precision: str,
    version: str,
    front: Dict[str, Any],
) -> bytes:
    """Write the card; ``front`` is the metadata that model hubs read."""
    report = inspect_ticket(ticket)
    totals = report["totals"]
    task = ticket.configuration().task
    pair = [str(task.get(f"{side}_lang") or "") for side in ("source", "target")]
    translates = all(pair)
    what = "text classifier"
    if translates:
        what = f"translator from {pair[0]} to {pair[1]}"
    elif task_of_ticket(ticket) is LANGUAGE_MODELING:
        what = "language model"
    head = "".join(f"{key}: {value}\n" for key, value in front.items())
    return _CARD.format(
        head=f"---\n{head}---\n" if front else "",
        title="-".join(pair) if translates else report["architecture"],
        what=what,
        precision=precision,
        version=version,
        signature=report["signature"],
        architecture=report["architecture"],
        masks=totals["masks"],
        kept=f"{totals['kept']:,}",
        positions=f"{totals['positions']:,}",
        trained=f"{totals['trained']:,}",
        text=describe_text(ticket),
        use=use,
    ).encode()
