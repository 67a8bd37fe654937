"""The commands user-dir and flags of onelayer-lottery: what to tell fairseq."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY

from onelayer_lottery.config import add_mask_args
from onelayer_lottery.errors import LotteryError

_PACKAGE = Path(__file__).resolve().parent


def add_commands(commands) -> None:
    """Add user-dir and flags to the command line's parser."""
    parser = commands.add_parser(
        "user-dir", help="print the path to give fairseq as --user-dir"
    )
    parser.set_defaults(run=lambda options: print(_PACKAGE))
    parser = commands.add_parser(
        "flags",
        help="explain the flags that this package adds to fairseq-train",
        description="Explain the flags that this package adds to fairseq-train, whose"
        " own --help shows none of an architecture.",
    )
    parser.add_argument(
        "arch",
        metavar="ARCH",
        nargs="?",
        default="transformer_onelayer_random_small",
        help="architecture of this package (default: %(default)s)",
    )
    parser.set_defaults(run=_flags)


def _flags(options: argparse.Namespace) -> None:
    ours = {n: m for n, m in ARCH_MODEL_REGISTRY.items() if hasattr(m, "config_class")}
    if options.arch not in ours:
        raise LotteryError(
            f"{options.arch} is not an architecture of this package; give one of"
            f" {', '.join(sorted(ours))}"
        )
    parser = argparse.ArgumentParser(
        prog="fairseq-train DATA --user-dir onelayer_lottery",
        usage=f"%(prog)s --arch {options.arch} [flags below] [flags of fairseq]",
        add_help=False,
    )
    add_mask_args(parser, ours[options.arch].config_class)
    print(parser.format_help(), end="")  # print_help would hide that it cannot write
