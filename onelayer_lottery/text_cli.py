"""The commands translate and classify of onelayer-lottery: text in, text out."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Callable, List, TextIO, Tuple

from onelayer_lottery.classify import Prediction, load_classifier
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.lines import waiting_lines
from onelayer_lottery.translate import load_ticket


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
    parser.set_defaults(run=_translate, error=parser.error)


def _translate(options: argparse.Namespace) -> None:
    if options.beam < 1:
        options.error(f"--beam {options.beam}: give a number from 1 on")
    translator = load_ticket(options.ticket)
    _answer(lambda group: translator.translate(group, beam=options.beam, warn=_say))


def _add_classify(commands) -> None:
    parser = commands.add_parser(
        "classify",
        help="label pairs of sentences from stdin",
        description="Read two sentences a line, separated by a tab, as lines come;"
        " print the most probable label and its probability, separated by a tab. Of a"
        " regression, print the value.",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    parser.set_defaults(run=_classify)


def _classify(options: argparse.Namespace) -> None:
    classifier = load_classifier(options.ticket)
    done = 0

    def labels(group: List[str]) -> List[str]:
        nonlocal done
        pairs = [_pair(line, done + n) for n, line in enumerate(group, start=1)]
        done += len(group)
        return list(map(_shown, classifier.classify(pairs, warn=_say)))

    _answer(labels)


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


def _answer(answers: Callable[[List[str]], List[str]]) -> None:
    """Write one line for each line of stdin, as they come."""
    if sys.stdin is None:
        raise LotteryError("standard input is closed; give it lines of text")
    out = open(1, "w", encoding="utf-8", newline="\n", closefd=False)  # noqa: SIM115
    # Not closed: that would wait for the thread that is waiting for the next line.
    lines = open(  # noqa: SIM115
        0, encoding="utf-8", errors="replace", newline="\n", closefd=False
    )
    try:
        for group in waiting_lines(lines):
            _write(out, "".join(line + "\n" for line in answers(group)))
    except (BrokenPipeError, KeyboardInterrupt) as stop:
        os._exit(1 if isinstance(stop, BrokenPipeError) else 130)
    except OSError as error:
        raise LotteryError(f"cannot read standard input: {error.strerror}") from None


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


def _say(line: str) -> None:
    print(line, file=sys.stderr)
