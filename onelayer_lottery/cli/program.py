"""The entry point of onelayer-lottery: results to stdout, progress to stderr.

What a subcommand needs is imported when it runs: --help takes no time, and a ticket can
be used where torch and fairseq are not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import warnings
from typing import Any, Iterator, List, Optional, TextIO

from onelayer_lottery import __version__
from onelayer_lottery.cli import (
    checkpoints,
    experiments,
    exports,
    language_models,
    page,
    plugin,
    text,
    tickets,
)
from onelayer_lottery.cli.options import say
from onelayer_lottery.errors import LotteryError, printable

_README = "README.md says how, under Install"
_EXPERIMENTS = "pip install onelayer_lottery[experiments]"
# How to install what some commands need.
_INSTALL = {
    "torch": _README,
    "fairseq": _README,
    "yaml": _EXPERIMENTS,
    "sacrebleu": _EXPERIMENTS,
}


def main(argv: Optional[List[str]] = None) -> int:
    """Run a subcommand; 0 done, 1 failed, 2 misuse."""
    name = "onelayer-lottery"
    # Users do not need fairseq's log of batches, matplotlib's of fonts and torch's
    # warning about pinned memory.
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
        say(printable(f"{name}: {error}"))
        _drop_output()
        return 1
    except MemoryError as error:
        say(f"{name}: there is not enough memory for this file or model ({error})")
        return 1
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        if library not in _INSTALL:  # a fault of this package, or of another
            raise
        say(f"{name}: this needs {library}, not installed here: {_INSTALL[library]}")
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
    """Drop what is left to write, or Python would fail again when it exits."""
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
    for group in (
        *(tickets, exports, page, text, language_models),
        *(checkpoints, experiments, plugin),
    ):
        group.add_commands(commands)
    return parser
