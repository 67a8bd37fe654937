"""The commands export and bake of onelayer-lottery: models for other libraries."""

from __future__ import annotations

import argparse
from pathlib import Path

from onelayer_lottery import __version__
from onelayer_lottery.cli.options import add_output, refuse_existing
from onelayer_lottery.cli.tickets import PRECISIONS, add_data, any_ticket, arch_of
from onelayer_lottery.ticket.format import Ticket

TARGETS = ("fairseq", "ctranslate2", "huggingface")


def add_commands(commands) -> None:
    """Add export and bake to the command line's parser."""
    _add_export(commands)
    _add_bake(commands)


def _add_export(commands) -> None:
    parser = commands.add_parser(
        "export",
        help="write a ticket or checkpoint as a model of another library",
        description="Multiply frozen weights and masks out, and write a model that runs"
        " without this package: a checkpoint of stock fairseq, a folder of CTranslate2,"
        " or a folder of Hugging Face's transformers.",
    )
    parser.add_argument("source", type=Path, metavar="TICKET|CHECKPOINT")
    add_output(parser, "OUT")
    parser.add_argument("--to", choices=TARGETS, required=True)
    parser.add_argument(
        "--compute",
        choices=("float32", "int8"),
        help="precision of the weights, for ctranslate2 (default: float32)",
    )
    parser.add_argument(
        "--dtype",
        choices=PRECISIONS,
        help="precision of the weights, for fairseq (default: fp32)",
    )
    add_data(parser)
    parser.set_defaults(run=_export, error=parser.error)


def _export(options: argparse.Namespace) -> None:
    for flag, target in (("compute", "ctranslate2"), ("dtype", "fairseq")):
        if getattr(options, flag) and options.to != target:
            options.error(f"--{flag} is for --to {target}")
    if options.to == "fairseq":
        options.dtype = options.dtype or "fp32"
        _bake(options)
        return
    from onelayer_lottery.exports.folder import write_folder

    refuse_existing(options)
    ticket = any_ticket(options)
    if options.to == "ctranslate2":
        from onelayer_lottery.exports.ctranslate2_folder import ctranslate2_files

        compute = options.compute or "float32"
        files = ctranslate2_files(ticket, compute=compute, version=__version__)
    else:
        from onelayer_lottery.exports.huggingface import huggingface_files

        files = huggingface_files(ticket, version=__version__)
    size = write_folder(options.output, files, force=options.force)
    print(f"wrote {options.output}: {len(files)} files, {size / 1e6:.1f} MB")


def _add_bake(commands) -> None:
    parser = commands.add_parser(
        "bake",
        help="the same as export --to fairseq",
        description="Multiply frozen weights and masks out: a checkpoint that fairseq"
        " loads without this package.",
    )
    parser.add_argument("source", type=Path, metavar="TICKET|CHECKPOINT")
    add_output(parser, "OUT.pt")
    parser.add_argument("--dtype", choices=PRECISIONS, default="fp32")
    add_data(parser)
    parser.set_defaults(run=_bake, error=parser.error)


def _bake(options: argparse.Namespace) -> None:
    import torch

    from onelayer_lottery.checkpoint.reading import save_checkpoint
    from onelayer_lottery.conversion.to_checkpoint import baked_checkpoint

    refuse_existing(options)
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[options.dtype]
    ticket: Ticket = any_ticket(options)
    state = baked_checkpoint(ticket, dtype=dtype)
    save_checkpoint(state, options.output, force=options.force)
    size = options.output.stat().st_size / 1e6
    print(f"wrote {options.output}: {arch_of(state)}, {options.dtype}, {size:.1f} MB")
