"""The subword model inside a ticket, as fairseq's encoder of it."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any, Optional

from fairseq.data import encoders

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.ticket import Bpe

# GPT-2's is two files; a ticket has both, with a zero byte between.
GPT2_FILES = ("encoder.json", "vocab.bpe")


def read_bpe(path: Path, kind: Optional[str]) -> Bpe:
    """Read a subword model, a file or for GPT-2's a folder, and try whether it works.

    Without a kind, .model is sentencepiece, a folder gpt2, and all else fastbpe.
    """
    guess = "sentencepiece" if path.suffix == ".model" else "fastbpe"
    kind = kind or ("gpt2" if path.is_dir() else guess)
    files = [path / name for name in GPT2_FILES] if kind == "gpt2" else [path]
    try:
        bpe = Bpe(kind, b"\0".join(file.read_bytes() for file in files))
    except OSError as error:
        raise LotteryError(
            f"cannot read --bpe {error.filename}: {error.strerror}"
        ) from None
    try:
        build_bpe(bpe)
    except LotteryError as error:
        raise LotteryError(f"--bpe {path}: {error}") from None
    return bpe


def build_bpe(bpe: Optional[Bpe]) -> Any:
    """Build fairseq's encoder of a subword model, which reads it from files."""
    if bpe is None:
        return None
    flags = {
        "sentencepiece": ("sentencepiece_model",),
        "gpt2": ("gpt2_encoder_json", "gpt2_vocab_bpe"),
    }.get(bpe.kind, ("bpe_codes",))
    contents = bpe.content.split(b"\0", 1) if bpe.kind == "gpt2" else [bpe.content]
    if len(contents) != len(flags):
        raise LotteryError("the subword model of gpt2 is not of two files")
    with tempfile.TemporaryDirectory() as folder:
        paths = {flag: os.path.join(folder, flag) for flag in flags}
        for path, content in zip(paths.values(), contents):
            with open(path, "wb") as file:
                file.write(content)
        try:
            return encoders.build_bpe(Namespace(bpe=bpe.kind, **paths))
        except ImportError as error:
            raise LotteryError(
                f"the subword model is of {bpe.kind}, whose library is not installed"
                f" ({str(error).strip()})"
            ) from None
        except Exception as error:  # each library has errors of its own
            reason = str(error).strip().split("\n")[0]
            for path in paths.values():
                reason = reason.replace(path, "it")
            raise LotteryError(
                f"the subword model cannot be read as {bpe.kind}: {reason}"
            ) from None
