"""The command onelayer-lottery: results to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Iterator, List, Optional, TextIO

import torch

from onelayer_lottery import __version__
from onelayer_lottery.average import average_checkpoints, last_checkpoints
from onelayer_lottery.checkpoint import (
    Checkpoint,
    is_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from onelayer_lottery.convert import (
    baked_checkpoint,
    checkpoint_from_ticket,
)
from onelayer_lottery.embeddings import SIDES, read_vectors, write_text
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.cli import add_commands as add_experiments
from onelayer_lottery.export import (
    check_masked,
    find_dictionaries,
    ticket_from_checkpoint,
)
from onelayer_lottery.inspection import format_inspection, inspect_ticket
from onelayer_lottery.plugin_cli import add_commands as add_plugin_commands
from onelayer_lottery.subwords import read_bpe
from onelayer_lottery.text_cli import add_commands as add_text_commands
from onelayer_lottery.ticket import (
    BPE_KINDS,
    Bpe,
    Ticket,
    read_ticket,
    stored_bytes,
    write_ticket,
)

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def main(argv: Optional[List[str]] = None) -> int:
    """Run a subcommand; 0 done, 1 failed, 2 misuse."""
    name = "onelayer-lottery"
    # fairseq's log of batches, matplotlib's of fonts and torch's of pinned memory say
    # nothing to a user here.
    for library in ("fairseq", "matplotlib"):
        logging.getLogger(library).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    try:
        with contextlib.redirect_stdout(_Output(sys.stdout)):
            try:
                options = _parser().parse_args(argv)
                name += f" {options.command}"
                sys.stdout.write("")  # before the work, rather than after it
                options.run(options)
            finally:
                sys.stdout.flush()
    except LotteryError as error:
        print(f"{name}: {error}", file=sys.stderr)
        _drop_output()
        return 1
    except BrokenPipeError:  # of a reader such as head, which has seen enough
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class _Output:
    """Standard output, whose failures are told from those of other files."""

    def __init__(self, stream: Optional[TextIO]):
        self._stream = stream  # None if it was closed when Python started

    def write(self, text: str) -> int:
        if self._stream is None:
            raise LotteryError("cannot write to standard output: it is closed")
        with _writing():
            return self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            with _writing():
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LotteryError(
            f"cannot write to standard output: {error.strerror}"
        ) from None


def _drop_output() -> None:
    """Leave nothing that Python would try to write when it ends, and fail again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="onelayer-lottery",
        description="Tools for one-layer random Transformers trained with fairseq.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_ticket(commands)
    _add_restore(commands)
    _add_bake(commands)
    add_text_commands(commands)
    _add_inspect(commands)
    _add_average(commands)
    _add_embeddings(commands)
    add_experiments(commands)
    add_plugin_commands(commands)
    return parser


def _add_ticket(commands) -> None:
    parser = commands.add_parser(
        "ticket",
        help="make a ticket, a small safe file, of a checkpoint",
        description="Store a trained masked model as a seed and one bit per weight.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    _add_output(parser, "OUT")
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
        "--embeddings",
        choices=list(_DTYPES),
        default="fp32",
        help="precision of the kept values of imported embeddings (default: fp32)",
    )
    _add_data(parser)
    parser.set_defaults(run=_ticket, error=parser.error)


def _ticket(options: argparse.Namespace) -> None:
    if options.bpe_kind and not options.bpe:
        options.error("--bpe-kind says what --bpe FILE is: give that too")
    _refuse_existing(options)
    bpe = read_bpe(options.bpe, options.bpe_kind) if options.bpe else None
    ticket = _ticket_of_checkpoint(options.checkpoint, options, bpe)
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


def _add_restore(commands) -> None:
    parser = commands.add_parser(
        "restore",
        help="turn a ticket into a checkpoint for --user-dir onelayer_lottery",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    _add_output(parser, "OUT.pt")
    parser.set_defaults(run=_restore)


def _restore(options: argparse.Namespace) -> None:
    _refuse_existing(options)
    state = checkpoint_from_ticket(read_ticket(options.ticket))
    save_checkpoint(state, options.output, force=options.force)
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}: {_arch(state)}, {size:.1f} MB")


def _add_bake(commands) -> None:
    parser = commands.add_parser(
        "bake",
        help="turn a ticket or checkpoint into one of stock fairseq",
        description="Multiply frozen weights and masks out: a checkpoint that fairseq"
        " loads without this package.",
    )
    parser.add_argument("source", type=Path, metavar="TICKET|CHECKPOINT")
    _add_output(parser, "OUT.pt")
    parser.add_argument("--dtype", choices=list(_DTYPES), default="fp32")
    _add_data(parser)
    parser.set_defaults(run=_bake, error=parser.error)


def _bake(options: argparse.Namespace) -> None:
    _refuse_existing(options)
    state = baked_checkpoint(_any_ticket(options), dtype=_DTYPES[options.dtype])
    save_checkpoint(state, options.output, force=options.force)
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}: {_arch(state)}, {options.dtype}, {size:.1f} MB")


def _add_inspect(commands) -> None:
    parser = commands.add_parser(
        "inspect", help="show what is in a ticket or a checkpoint"
    )
    parser.add_argument("source", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    if is_checkpoint(options.source):
        try:
            ticket = ticket_from_checkpoint(load_checkpoint(options.source))
        except LotteryError as error:
            raise LotteryError(f"{options.source}: {error}") from None
        report = inspect_ticket(ticket)
    else:
        ticket = read_ticket(options.source)
        report = inspect_ticket(ticket, stored_bytes(options.source))
    report["file_bytes"] = options.source.stat().st_size
    print(json.dumps(report, indent=2) if options.json else format_inspection(report))


def _add_average(commands) -> None:
    parser = commands.add_parser(
        "average",
        help="average the models of several checkpoints",
        description="Average the scores, and whatever else was trained, of several"
        " checkpoints of one training. Frozen weights stay as they are.",
    )
    parser.add_argument("checkpoints", nargs="*", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--last",
        nargs=2,
        metavar=("N", "DIR"),
        help="the last N checkpoints of epochs in DIR (of updates, if there are none)",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT")
    _add_force(parser)
    parser.set_defaults(run=_average, error=parser.error)


def _average(options: argparse.Namespace) -> None:
    paths = options.checkpoints
    if bool(paths) == bool(options.last):
        options.error("give either checkpoints or --last N DIR")
    if options.last:
        count, folder = options.last
        if not count.isdigit() or int(count) < 1:
            options.error(f"--last {count}: N is a number from 1 on")
        paths = last_checkpoints(Path(folder), int(count))
    _refuse_existing(options)
    state = average_checkpoints(paths, progress=_say)
    save_checkpoint(state, options.output, force=options.force)
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}: mean of {len(paths)} checkpoints, {size:.1f} MB")


def _add_embeddings(commands) -> None:
    parser = commands.add_parser(
        "embeddings",
        help="write the embeddings of a checkpoint as a text file",
        description="Write each symbol with its vector, in the text form that stock"
        " fairseq reads.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--side", choices=SIDES, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--embed-dict",
        type=Path,
        metavar="FILE",
        help="the dictionary of that side (default: found beside the checkpoint)",
    )
    parser.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="read also a checkpoint that may run code",
    )
    _add_force(parser)
    parser.set_defaults(run=_embeddings)


def _embeddings(options: argparse.Namespace) -> None:
    _refuse_existing(options)
    vectors = read_vectors(
        options.checkpoint,
        options.side,
        dictionary=options.embed_dict,
        trust=options.trust_checkpoint,
    )
    if vectors.symbols is None:
        raise LotteryError(
            f"found no dictionary beside {options.checkpoint}; give it as --embed-dict"
        )
    write_text(options.output, vectors)
    rows, dimension = vectors.matrix.shape
    print(f"wrote {options.output}: {rows} vectors of dimension {dimension}")


def _add_output(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("output", type=Path, metavar=name)
    _add_force(parser)


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of the dictionaries dict.*.txt, or of sentence pairs input0/ and"
        " label/ with a dict.txt each (default: beside the checkpoint, or where the"
        " training data were)",
    )


def _refuse_existing(options: argparse.Namespace) -> None:
    """Before the work, rather than after it."""
    if options.output.exists() and not options.force:
        raise LotteryError(f"{options.output} exists, pass --force to replace it")


def _any_ticket(options: argparse.Namespace) -> Ticket:
    if is_checkpoint(options.source):
        return _ticket_of_checkpoint(options.source, options)
    if options.data:
        options.error("--data is for checkpoints: a ticket has its dictionaries inside")
    return read_ticket(options.source)


def _ticket_of_checkpoint(
    path: Path, options: argparse.Namespace, bpe: Optional[Bpe] = None
) -> Ticket:
    state = load_checkpoint(path)
    try:
        check_masked(state)
        return ticket_from_checkpoint(
            state,
            dictionaries=find_dictionaries(
                state, beside=path.parent, given=options.data
            ),
            bpe=bpe,
            embeddings=_DTYPES[getattr(options, "embeddings", "fp32")],
        )
    except LotteryError as error:
        raise LotteryError(f"{path}: {error}") from None


def _has_values(ticket: Ticket) -> bool:
    return any("embed_tokens" in name for name in ticket.dense) or any(
        frozen.values is not None for frozen in ticket.frozen.values()
    )


def _arch(state: Checkpoint) -> str:
    return state["cfg"]["model"]["arch"]


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
