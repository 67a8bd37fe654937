"""The commands ticket, restore, inspect and verify of onelayer-lottery."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, Optional

from onelayer_lottery.cli.options import add_output, refuse_existing
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import is_checkpoint
from onelayer_lottery.ticket.format import (
    BPE_KINDS,
    Bpe,
    Moses,
    TextSteps,
    Ticket,
    read_ticket,
    write_ticket,
)
from onelayer_lottery.ticket.inspection import format_inspection, inspect_ticket

PRECISIONS = ("fp32", "fp16")


def add_commands(commands) -> None:
    """Add the commands of tickets to the command line's parser."""
    _add_ticket(commands)
    _add_restore(commands)
    _add_inspect(commands)
    _add_verify(commands)


def _add_ticket(commands) -> None:
    parser = commands.add_parser(
        "ticket",
        help="make a ticket, a small safe file, of a checkpoint",
        description="Store a trained masked model as a seed and one bit per weight.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    add_output(parser, "OUT")
    parser.add_argument(
        "--bpe", type=Path, metavar="FILE", help="put a subword model into the ticket"
    )
    parser.add_argument(
        "--bpe-kind",
        choices=BPE_KINDS,
        help="what --bpe is (default: sentencepiece for .model, gpt2 for a folder with"
        " its encoder.json and vocab.bpe, else fastbpe)",
    )
    parser.add_argument(
        "--moses",
        choices=("words", "dashes"),
        help="the training data were tokenised by Moses (sacremoses), words only or"
        " split at dashes too, as in WMT; the ticket then takes raw text",
    )
    parser.add_argument(
        "--lower",
        action="store_true",
        help="the training data were lower-cased; the ticket then takes any text",
    )
    parser.add_argument(
        "--embeddings",
        choices=PRECISIONS,
        default="fp32",
        help="precision of the kept values of imported embeddings (default: fp32)",
    )
    add_data(parser)
    parser.set_defaults(run=_ticket, error=parser.error)


def _ticket(options: argparse.Namespace) -> None:
    from onelayer_lottery.text.pipeline import text_pipeline
    from onelayer_lottery.text.subwords import read_bpe

    if options.bpe_kind and not options.bpe:
        options.error("--bpe-kind says what --bpe FILE is: give that too")
    refuse_existing(options)
    bpe = read_bpe(options.bpe, options.bpe_kind) if options.bpe else None
    ticket = _ticket_of_checkpoint(options.checkpoint, options, bpe)
    ticket.text = _text_steps(ticket, options)
    text_pipeline(ticket)
    if options.embeddings == "fp16" and not _has_values(ticket):
        raise LotteryError(
            f"--embeddings fp16: {options.checkpoint} has no imported or unmasked"
            " embeddings; leave it out"
        )
    written = write_ticket(ticket, options.output, force=options.force)
    positions = sum(masked.mask.size for masked in ticket.masks.values())
    kept = sum(int(masked.mask.sum()) for masked in ticket.masks.values())
    trained = sum(array.size for array in ticket.dense.values())
    content = (
        f"{len(ticket.masks)} masks, {kept / positions:.1%} of {positions / 1e6:.1f}M"
        " kept"
        if ticket.masks
        else f"no masks, {trained:,} values trained"
    )
    print(
        f"wrote {options.output}: {content}, {written / 1e6:.2f} MB"
        f" (checkpoint {options.checkpoint.stat().st_size / 1e6:.0f} MB)"
    )


def _text_steps(ticket: Ticket, options: argparse.Namespace) -> Optional[TextSteps]:
    moses = None
    if options.moses:
        task = ticket.configuration().task
        source, target = task.get("source_lang"), task.get("target_lang")
        if not (source and target):
            raise LotteryError(
                f"--moses {options.moses}: {options.checkpoint} is not a translator of"
                " two languages; leave it out"
            )
        moses = Moses(source, target, dashes=options.moses == "dashes")
    return TextSteps(moses, options.lower) if moses or options.lower else None


def _add_restore(commands) -> None:
    parser = commands.add_parser(
        "restore",
        help="turn a ticket into a checkpoint for --user-dir onelayer_lottery",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    add_output(parser, "OUT.pt")
    parser.set_defaults(run=_restore)


def _restore(options: argparse.Namespace) -> None:
    from onelayer_lottery.checkpoint.reading import save_checkpoint
    from onelayer_lottery.conversion.to_checkpoint import checkpoint_from_ticket

    refuse_existing(options)
    state = checkpoint_from_ticket(read_ticket(options.ticket))
    save_checkpoint(state, options.output, force=options.force)
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}: {arch_of(state)}, {size:.1f} MB")


def _add_inspect(commands) -> None:
    parser = commands.add_parser(
        "inspect", help="show what is in a ticket or a checkpoint"
    )
    parser.add_argument("source", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    if is_checkpoint(options.source):
        from onelayer_lottery.checkpoint.reading import load_checkpoint
        from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint

        try:
            ticket = ticket_from_checkpoint(load_checkpoint(options.source))
        except LotteryError as error:
            raise LotteryError(f"{options.source}: {error}") from None
        report = inspect_ticket(ticket)
    else:
        report = inspect_ticket(read_ticket(options.source))
    report["file_bytes"] = options.source.stat().st_size
    print(json.dumps(report, indent=2) if options.json else format_inspection(report))


def _add_verify(commands) -> None:
    parser = commands.add_parser(
        "verify",
        help="check that a ticket is whole, and say what it needs to run",
        description="Read all of a ticket, draw its weights, and check every digest.",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> None:
    from onelayer_lottery.inference.engines import check_weights
    from onelayer_lottery.runtime.needs import command_of, needs
    from onelayer_lottery.text.pipeline import text_pipeline

    ticket = read_ticket(options.ticket)
    count = check_weights(ticket)
    text_pipeline(ticket)
    print(
        f"{options.ticket} is whole: {count:,} weights of {len(ticket.frozen)} frozen"
        f" tensors and {len(ticket.masks)} masks, as its digests say; to"
        f" {command_of(ticket)}, it needs {', '.join(needs(ticket))}"
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add --data, for dictionaries of a checkpoint."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of the dictionaries dict.*.txt, or of sentence pairs input0/ and"
        " label/ with a dict.txt each (default: beside the checkpoint, or where the"
        " training data were)",
    )


def any_ticket(options: argparse.Namespace) -> Ticket:
    """Return the ticket that is given, or that of a checkpoint."""
    if is_checkpoint(options.source):
        return _ticket_of_checkpoint(options.source, options)
    if options.data:
        options.error("--data is for checkpoints: a ticket has its dictionaries inside")
    return read_ticket(options.source)


def _ticket_of_checkpoint(
    path: Path, options: argparse.Namespace, bpe: Optional[Bpe] = None
) -> Ticket:
    import torch

    from onelayer_lottery.checkpoint.reading import load_checkpoint
    from onelayer_lottery.conversion.from_checkpoint import (
        check_masked,
        ticket_from_checkpoint,
    )
    from onelayer_lottery.conversion.tasks import find_dictionaries

    half = getattr(options, "embeddings", "fp32") == "fp16"
    state = load_checkpoint(path)
    try:
        check_masked(state)
        return ticket_from_checkpoint(
            state,
            dictionaries=find_dictionaries(
                state, beside=path.parent, given=options.data
            ),
            bpe=bpe,
            embeddings=torch.float16 if half else torch.float32,
        )
    except LotteryError as error:
        raise LotteryError(f"{path}: {error}") from None


def _has_values(ticket: Ticket) -> bool:
    return any("embed_tokens" in name for name in ticket.dense) or any(
        frozen.values is not None for frozen in ticket.frozen.values()
    )


def arch_of(state: Dict[str, Any]) -> str:
    return state["cfg"]["model"]["_name"]
