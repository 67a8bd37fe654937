"""The subword model inside a ticket, as fairseq's encoder of it.

The libraries behind it end the process on some files that are not theirs. Codes and
merges are therefore checked here, line by line, before a library sees them.
"""

from __future__ import annotations

import json
import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, List, Optional

from fairseq.data import encoders

from onelayer_lottery.container import quote
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
    _check(bpe.kind, contents)
    with tempfile.TemporaryDirectory() as folder:
        paths = {flag: os.path.join(folder, flag) for flag in flags}
        for path, content in zip(paths.values(), contents):
            with open(path, "wb") as file:
                file.write(content)
        try:
            return Subwords(encoders.build_bpe(Namespace(bpe=bpe.kind, **paths)))
        except ImportError as error:
            raise LotteryError(
                f"the subword model is of {bpe.kind}, whose library is not installed"
                f" ({str(error).strip()})"
            ) from None
        except (Exception, SystemExit) as error:  # each library has its own
            reason = str(error).strip().split("\n")[0]
            for path in paths.values():
                reason = reason.replace(path, "it")
            raise LotteryError(
                f"the subword model cannot be read as {bpe.kind}: {reason}"
            ) from None


class Subwords:
    """An encoder of fairseq whose failures are sentences."""

    def __init__(self, encoder: Any):
        self._encoder = encoder

    def encode(self, text: str) -> str:
        return self._call(self._encoder.encode, text)

    def decode(self, text: str) -> str:
        return self._call(self._encoder.decode, text)

    @staticmethod
    def _call(function: Callable[[str], str], text: str) -> str:
        try:
            return function(text)
        except Exception as error:
            raise LotteryError(
                f"the subword model fails on {quote(text[:60])}: {quote(error)}"
            ) from None


def _check(kind: str, contents: List[bytes]) -> None:
    """Refuse content that the library of its kind would not survive."""
    if kind == "sentencepiece":  # survives anything
        return
    try:
        texts = [content.decode() for content in contents]
    except UnicodeDecodeError:
        raise LotteryError(
            f"the subword model of {kind} is not text in UTF-8"
        ) from None
    lines = (texts[-1][:-1] if texts[-1].endswith("\n") else texts[-1]).split("\n")
    version = kind == "subword_nmt" and lines[0].startswith("#version:")
    header = kind == "gpt2" or version
    fields = 3 if kind == "fastbpe" else 2
    seen = set()
    for number, line in list(enumerate(lines, start=1))[header:]:
        parts = line.rstrip("\r").split(" ")
        merged = "".join(parts[:2])
        if len(parts) != fields or not all(parts) or "\0" in line:
            raise LotteryError(
                f"line {number} of the subword model of {kind} is {quote(line)};"
                f" expected {fields} fields separated by a space"
            )
        if kind == "fastbpe" and merged in seen:
            raise LotteryError(
                f"line {number} of the subword model of {kind} merges {quote(merged)}"
                " again"
            )
        seen.add(merged)
    if kind == "gpt2":
        _check_vocabulary(texts[0])


def _check_vocabulary(text: str) -> None:
    try:
        vocabulary = json.loads(text)
    except (ValueError, RecursionError):
        vocabulary = None
    if type(vocabulary) is not dict or not all(
        type(index) is int and 0 <= index < 1 << 31 for index in vocabulary.values()
    ):
        raise LotteryError(
            "the subword model of gpt2 has no JSON object of symbols and their indices"
        )
