"""The command page of onelayer-lottery: a ticket as a web page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import List

from onelayer_lottery.cli.options import add_force, refuse_existing
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.exports.refusal import refuse
from onelayer_lottery.files import whole_file
from onelayer_lottery.page.build import page
from onelayer_lottery.page.moses import LEFT_OUT, moses_tables
from onelayer_lottery.ticket.format import Ticket, read_ticket
from onelayer_lottery.ticket.tasks import (
    LANGUAGE_MODELING,
    SENTENCE_PREDICTION,
    TRANSLATION,
    task_of_ticket,
)

_MOST_EXAMPLES = 20
_MOST_BYTES = 1 << 30  # of the memory that page/memory.mjs takes


def add_commands(commands) -> None:
    """Add page to the command line's parser."""
    parser = commands.add_parser(
        "page",
        help="make a web page of a ticket that translates in a browser",
        description="Write one file of HTML that holds the ticket and a program to"
        " compute it: it opens from disk and needs no network and no installation.",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT.html", help="the page"
    )
    add_force(parser)
    parser.add_argument("--title", help="heading of the page")
    parser.add_argument(
        "--examples",
        type=Path,
        metavar="FILE",
        help=f"lines to offer for a click, at most {_MOST_EXAMPLES}; of sentence pairs,"
        " with a tab between the two",
    )
    parser.set_defaults(run=_page)


def _page(options: argparse.Namespace) -> None:
    refuse_existing(options)
    ticket = read_ticket(options.ticket)
    task = task_of_ticket(ticket)
    if task is LANGUAGE_MODELING:
        raise LotteryError(
            f"{options.ticket} is of the task {task.name}, and a page can only"
            " translate; use score or continue"
        )
    if task not in (TRANSLATION, SENTENCE_PREDICTION):
        raise LotteryError(
            f"{options.ticket} is of the task {task.name}, and a page can only"
            " translate or classify"
        )
    refuse("a page", _reasons(ticket))
    sentences = 1 if task is TRANSLATION else 2
    examples = _examples(options.examples, sentences) if options.examples else []
    text = page(
        options.ticket.read_bytes(),
        title=options.title or _title(ticket, options.ticket),
        examples=examples,
        tables=moses_tables(ticket.text.moses if ticket.text else None),
    )
    content = text.encode(errors="replace")  # a name of a file may be no text
    try:
        with whole_file(options.output) as file:
            file.write(content)
    except OSError as error:
        raise LotteryError(f"cannot write {options.output}: {error.strerror}") from None
    print(f"wrote {options.output}: open it in a browser, {len(content) / 1e3:.0f} kB")


def _reasons(ticket: Ticket) -> List[str]:
    """Return what the program in a page refuses, for which nobody should open one."""
    configuration = ticket.configuration()
    flags, reasons = configuration.model, []
    kind = flags.get("reservoir_type")
    if "_reservoir" in configuration.arch and kind in ("bigru", "cnn"):
        reasons.append(f"it has reservoirs of type {kind}")
    if flags.get("cross_self_attention"):
        reasons.append("it has --cross-self-attention")
    moses = ticket.text.moses if ticket.text else None
    if moses and moses.source in LEFT_OUT["source"]:
        reasons.append(f"it has Moses' tokens from {moses.source}")
    if moses and moses.target in LEFT_OUT["target"]:
        reasons.append(f"it has Moses' tokens to {moses.target}")
    weights = [*(m.mask for m in ticket.masks.values()), *ticket.dense.values()]
    size = 4 * sum(weight.size for weight in weights)
    if size > _MOST_BYTES:
        reasons.append(
            f"it has {size / 1e6:.2f} MB of weights, and the limit is"
            f" {_MOST_BYTES / 1e6:.0f}"
        )
    return reasons


def _title(ticket: Ticket, path: Path) -> str:
    flags = ticket.configuration().task
    source, target = flags.get("source_lang"), flags.get("target_lang")
    return f"{source} to {target}: {path.stem}" if source and target else path.stem


def _examples(path: Path, sentences: int) -> List[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # as translate does
    except UnicodeDecodeError:
        raise LotteryError(f"--examples {path} is not text in UTF-8") from None
    except OSError as error:
        raise LotteryError(f"cannot read --examples {path}: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        columns = line.count("\t") + 1
        if line.strip() and columns != sentences:
            raise LotteryError(
                f"--examples {path}: line {number} has {columns} column"
                f"{'s' * (columns > 1)}; this ticket takes"
                f" {'one sentence' if sentences == 1 else 'two sentences with a tab'}"
            )
    return [line for line in lines if line.strip()][:_MOST_EXAMPLES]
