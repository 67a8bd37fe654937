"""The commands translate and classify of onelayer-lottery: text in, text out."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    TextIO,
    Tuple,
)

from onelayer_lottery.cli.options import say
from onelayer_lottery.cli.progress import Progress
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.inference.streaming import waiting_lines
from onelayer_lottery.runtime.engine import out_of_range

if TYPE_CHECKING:
    from onelayer_lottery.runtime.classifier import Prediction


def add_commands(commands) -> None:
    """Add translate and classify to the command line's parser."""
    _add_translate(commands)
    _add_classify(commands)


def _add_translate(commands) -> None:
    parser = commands.add_parser(
        "translate",
        help="translate raw text from stdin to stdout",
        description="Translate line by line, as lines come; one line out per line in.",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    parser.add_argument("--beam", type=int, default=5, metavar="N")
    add_engine(parser)
    parser.add_argument(
        "--batch-size",
        type=int,
        default=0,
        metavar="N",
        help="sentences at a time (default: as many as make 512 symbols, or with"
        " fairseq 64)",
    )
    parser.set_defaults(run=_translate, error=parser.error)


def _translate(options: argparse.Namespace) -> None:
    _check_number(options, "--beam", "beam", options.beam)
    _check_number(options, "--batch-size", "batch", options.batch_size)
    from onelayer_lottery.inference.engines import load_ticket

    translator = load_ticket(
        options.ticket, batch=options.batch_size, warn=say, **engine_options(options)
    )
    answer(
        line
        for group in input_groups()
        for line in translator.translate(group, beam=options.beam, warn=say)
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        choices=("auto", "ctranslate2", "fairseq"),
        default="auto",
        help="what runs the model (default: ctranslate2 where it is installed and can,"
        " else fairseq)",
    )
    parser.add_argument(
        "--compute",
        choices=("float32", "int8"),
        default="float32",
        help="float32 is exact; int8 is faster, rounds weights and is CTranslate2's"
        " only (default: float32)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="threads of the engine (default: its own choice, or OMP_NUM_THREADS)",
    )


def engine_options(options: argparse.Namespace) -> Dict[str, Any]:
    _check_number(options, "--threads", "threads", options.threads)
    return {
        "engine": options.engine,
        "compute": options.compute,
        "threads": options.threads,
    }


def _check_number(
    options: argparse.Namespace, flag: str, name: str, value: int
) -> None:
    problem = out_of_range(name, value)
    if problem:
        options.error(f"{flag} {value}: {problem}")


def _add_classify(commands) -> None:
    parser = commands.add_parser(
        "classify",
        help="label pairs of sentences from stdin",
        description="Read two sentences a line, separated by a tab, as lines come;"
        " print the most probable label and its probability, separated by a tab. Of a"
        " regression, print the value.",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    add_engine(parser)
    parser.set_defaults(run=_classify, error=parser.error)


def _classify(options: argparse.Namespace) -> None:
    from onelayer_lottery.inference.engines import load_classifier

    classifier = load_classifier(options.ticket, warn=say, **engine_options(options))

    def labels() -> Iterator[str]:
        done = 0
        for group in input_groups():
            pairs = [_pair(line, done + n) for n, line in enumerate(group, start=1)]
            done += len(group)
            yield from map(_shown, classifier.classify(pairs, warn=say))

    answer(labels())


def _pair(line: str, number: int) -> Tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise LotteryError(
            f"line {number} has {len(columns)} columns; give two sentences separated by"
            " a tab"
        )
    for place, sentence in enumerate(columns, start=1):
        if not sentence.strip():
            raise LotteryError(f"sentence {place} of line {number} is empty")
    return columns[0], columns[1]


def _shown(prediction: Prediction) -> str:
    if prediction.probability is None:
        return prediction.label
    return f"{prediction.label}\t{prediction.probability:.4f}"


def input_groups() -> Iterator[List[str]]:
    """Yield the lines of stdin in groups, as they come, and show progress."""
    if sys.stdin is None:
        raise LotteryError("standard input is closed; give it lines of text")
    # Not closed: that would wait for the thread that is waiting for the next line.
    lines = open(0, "rb", closefd=False)  # noqa: SIM115
    progress = Progress(0)
    for group in waiting_lines(_decoded(lines)):
        yield group
        progress.after(group)
    progress.end()


def answer(lines: Iterable[str]) -> None:
    """Write lines to stdout as they come; they come from lines of stdin."""
    out = open(1, "w", encoding="utf-8", newline="\n", closefd=False)  # noqa: SIM115
    try:
        for line in lines:
            _write(out, line + "\n")
    except (BrokenPipeError, KeyboardInterrupt) as stop:
        os._exit(1 if isinstance(stop, BrokenPipeError) else 130)
    except OSError as error:
        raise LotteryError(f"cannot read standard input: {error.strerror}") from None


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            say(
                f"line {number} is not text in UTF-8 at its byte {error.start + 1};"
                " what cannot be read is taken for unknown characters"
            )
            yield line.decode(errors="replace")


def _write(out: TextIO, text: str) -> None:
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LotteryError(
            f"cannot write to standard output: {error.strerror}"
        ) from None
