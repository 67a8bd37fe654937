"""The subword model inside a ticket: it splits and joins words as fairseq does.

The libraries behind it end the process on some files that are not theirs. Codes and
merges are therefore checked here, line by line, before a library sees them.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from itertools import islice
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.text.byte_level import ByteLevel
from onelayer_lottery.ticket.format import Bpe

# What reads each kind, as pip names it.
LIBRARIES = {
    "sentencepiece": "sentencepiece",
    "fastbpe": "fastBPE",
    "subword_nmt": "subword-nmt",
    "gpt2": "regex",
}

# Most libraries take time that grows with the square of a word's length. Those of BPE
# take words to end at a space, and at no other white space.
_OVERLONG = re.compile(r"([^ ]{1000})(?=[^ ])")
# A release of subword_nmt hangs on what is not the number of a version.
_VERSION = re.compile(r"#version: \d{1,3}(\.\d{1,3}){0,3}\s*")

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


def build_bpe(bpe: Optional[Bpe]) -> Optional[Subwords]:
    """Make a subword model ready to split words and to join what was split."""
    if bpe is None:
        return None
    contents = check_subwords(bpe)
    try:
        return Subwords(*_BUILDERS[bpe.kind](*contents))
    except ImportError as error:
        raise LotteryError(
            f"the subword model is of {bpe.kind}, whose library is not installed:"
            f" pip install {LIBRARIES[bpe.kind]} ({str(error).strip()})"
        ) from None
    except (Exception, SystemExit) as error:  # each library has its own
        reason = str(error).strip().split("\n")[0]
        raise LotteryError(
            f"the subword model cannot be read as {bpe.kind}: {reason}"
        ) from None


def check_subwords(bpe: Optional[Bpe]) -> List[bytes]:
    """Return the files of a subword model; LotteryError says what is wrong."""
    if bpe is None:
        return []
    contents = bpe.content.split(b"\0", 1) if bpe.kind == "gpt2" else [bpe.content]
    if bpe.kind == "gpt2" and len(contents) != len(GPT2_FILES):
        raise LotteryError("the subword model of gpt2 is not of two files")
    _check(bpe.kind, contents)
    return contents


class Subwords:
    """Splits the words of a line and joins them again; failures are sentences."""

    def __init__(self, split: Callable[[str], str], join: Callable[[str], str]):
        self._split = split
        self._join = join

    def encode(self, text: str) -> str:
        return self._call(self._split, _OVERLONG.sub(r"\1 ", text))

    def decode(self, text: str) -> str:
        return self._call(self._join, text)

    @staticmethod
    def _call(function: Callable[[str], str], text: str) -> str:
        try:
            return function(text)
        except Exception as error:
            raise LotteryError(
                f"the subword model fails on {quote(text[:60])}: {quote(error)}"
            ) from None


_Pair = Tuple[Callable[[str], str], Callable[[str], str]]


def _sentencepiece(content: bytes) -> _Pair:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(content)
    return (
        lambda text: " ".join(model.encode(text, out_type=str)),
        lambda text: text.replace(" ", "").replace("\u2581", " ").strip(),
    )


def _fastbpe(content: bytes) -> _Pair:
    import fastBPE

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "codes")
        with open(path, "wb") as file:
            file.write(content)
        try:
            model = fastBPE.fastBPE(path)
        except Exception as error:
            raise ValueError(str(error).replace(path, "it")) from None
    return lambda text: model.apply([text])[0], _join_marked


def _subword_nmt(content: bytes) -> _Pair:
    from subword_nmt.apply_bpe import BPE

    model = BPE(io.StringIO(content.decode(), newline=None))
    return model.process_line, _join_marked


def _gpt2(vocabulary: bytes, merges: bytes) -> _Pair:
    model = ByteLevel(vocabulary.decode(), merges.decode())
    return model.encode, model.decode


def _join_marked(text: str) -> str:
    return f"{text} ".replace("@@ ", "").rstrip()


_BUILDERS: Dict[str, Callable[..., _Pair]] = {
    "sentencepiece": _sentencepiece,
    "fastbpe": _fastbpe,
    "subword_nmt": _subword_nmt,
    "gpt2": _gpt2,
}


def _check(kind: str, contents: List[bytes]) -> None:
    """Refuse content that the library of its kind would not survive."""
    if kind == "sentencepiece":  # survives anything from 0.2.2 on
        return
    try:
        texts = [content.decode() for content in contents]
    except UnicodeDecodeError:
        raise LotteryError(
            f"the subword model of {kind} is not text in UTF-8"
        ) from None
    lines = (texts[-1][:-1] if texts[-1].endswith("\n") else texts[-1]).split("\n")
    version = kind == "subword_nmt" and lines[0].startswith("#version:")
    if version and not _VERSION.fullmatch(lines[0]):
        raise LotteryError(
            f"line 1 of the subword model of {kind} is {quote(lines[0])}; expected a"
            " version such as #version: 0.2"
        )
    header = kind == "gpt2" or version
    fields = 3 if kind == "fastbpe" else 2
    seen = set()
    for number, line in islice(enumerate(lines, start=1), header, None):
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
        json.dumps(vocabulary, ensure_ascii=False).encode()  # half characters fail
    except (ValueError, RecursionError):
        vocabulary = None
    if type(vocabulary) is not dict or not all(
        type(index) is int and 0 <= index < 1 << 31 for index in vocabulary.values()
    ):
        raise LotteryError(
            "the subword model of gpt2 has no JSON object of symbols and their indices"
        )
