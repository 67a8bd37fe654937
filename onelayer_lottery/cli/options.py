"""Options and checks that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import is_there


def add_output(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("output", type=Path, metavar=name)
    add_force(parser)


def add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def refuse_existing(options: argparse.Namespace) -> None:
    """Refuse to overwrite a file, before the work rather than after it."""
    if is_there(options.output) and not options.force:
        raise LotteryError(f"{options.output} exists, pass --force to replace it")


def say(line: str) -> None:
    """Write a message to standard error, or nowhere if that is closed or full."""
    if sys.stderr is not None:  # print would take standard output instead
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr)
