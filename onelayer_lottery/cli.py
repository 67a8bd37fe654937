"""The command onelayer-lottery: results to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional

from onelayer_lottery import __version__
from onelayer_lottery.average import average_checkpoints, last_checkpoints
from onelayer_lottery.checkpoint import save_checkpoint
from onelayer_lottery.errors import LotteryError


def main(argv: Optional[List[str]] = None) -> int:
    """Run a subcommand; 0 done, 1 failed, 2 misuse."""
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except LotteryError as error:
        print(f"onelayer-lottery {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="onelayer-lottery",
        description="Tools for one-layer random Transformers trained with fairseq.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_average(commands)
    _add_user_dir(commands)
    return parser


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
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
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
    if options.output.exists() and not options.force:
        raise LotteryError(f"{options.output} exists, pass --force to replace it")
    state = average_checkpoints(paths, progress=_say)
    save_checkpoint(state, options.output, force=options.force)
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}: mean of {len(paths)} checkpoints, {size:.1f} MB")


def _add_user_dir(commands) -> None:
    parser = commands.add_parser(
        "user-dir", help="print the path to give fairseq as --user-dir"
    )
    parser.set_defaults(run=lambda options: print(Path(__file__).resolve().parent))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
