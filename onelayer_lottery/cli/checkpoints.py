"""The commands average and embeddings, which read checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from onelayer_lottery.cli.options import add_force, refuse_existing, say
from onelayer_lottery.errors import LotteryError


def add_commands(commands) -> None:
    """Add average and embeddings to the command line's parser."""
    _add_average(commands)
    _add_embeddings(commands)


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
    add_force(parser)
    parser.set_defaults(run=_average, error=parser.error)


def _average(options: argparse.Namespace) -> None:
    from onelayer_lottery.checkpoint.average import (
        average_checkpoints,
        last_checkpoints,
    )
    from onelayer_lottery.checkpoint.reading import save_checkpoint

    paths = options.checkpoints
    if bool(paths) == bool(options.last):
        options.error("give either checkpoints or --last N DIR")
    if options.last:
        count, folder = options.last
        if not count.isdigit() or int(count) < 1:
            options.error(f"--last {count}: N is a number from 1 on")
        paths = last_checkpoints(Path(folder), int(count))
    refuse_existing(options)
    state = average_checkpoints(paths, progress=say)
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
    parser.add_argument("--side", choices=("encoder", "decoder"), required=True)
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
    add_force(parser)
    parser.set_defaults(run=_embeddings)


def _embeddings(options: argparse.Namespace) -> None:
    from onelayer_lottery.embeddings.reading import read_vectors
    from onelayer_lottery.embeddings.vectors import write_text

    refuse_existing(options)
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
