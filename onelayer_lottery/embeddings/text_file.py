"""Read embeddings from a text file: a symbol and its vector on each line."""

from __future__ import annotations

import re
import reprlib
from pathlib import Path
from typing import Dict, List

import numpy as np
import torch

from onelayer_lottery.embeddings.vectors import Vectors
from onelayer_lottery.errors import LotteryError

_DIGITS = re.compile(r"[0-9.eE+-]*")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_LINE = 1 << 20  # characters
_MAX_DIMENSION = 100_000


def read_text(path: Path) -> Vectors:
    """Read word2vec or fastText, whose first line is two numbers, or GloVe."""
    rows: List[np.ndarray] = []
    seen: Dict[str, int] = {}  # the line of each symbol
    dimension = None
    try:
        with path.open(encoding="utf-8") as file:
            lines = iter(lambda: file.readline(_MAX_LINE + 1), "")
            for number, line in enumerate(lines, start=1):
                where = f"line {number} of {path}"
                if len(line) > _MAX_LINE:
                    raise LotteryError(
                        f"{where} has more than {_MAX_LINE:,} characters; give one"
                        " vector a line"
                    )
                symbol, *values = line.rstrip("\n").rstrip(" ").split(" ")
                if number == 1 and re.fullmatch(r"[0-9]+ [0-9]+ *\n?", line):
                    dimension = _declared(values[0], where)
                    continue
                if not values:
                    raise LotteryError(
                        f"{where} has 0 numbers; give a symbol and its vector"
                    )
                dimension = len(values) if dimension is None else dimension
                if len(values) != dimension:
                    raise LotteryError(
                        f"{where} has {len(values)} numbers, the others have"
                        f" {dimension}; it may be cut short"
                    )
                if symbol in seen:
                    raise LotteryError(
                        f"{where} has the symbol {symbol} of line {seen[symbol]} again;"
                        " give each symbol one vector"
                    )
                seen[symbol] = number
                rows.append(_numbers(values, where))
    except UnicodeDecodeError:
        raise LotteryError(
            f"{path} is neither a checkpoint, a safetensors file nor text in UTF-8"
        ) from None
    if not rows:
        raise LotteryError(f"{path} has no embeddings")
    return Vectors(torch.from_numpy(np.stack(rows)), list(seen))


def _numbers(values: List[str], where: str) -> np.ndarray:
    try:
        # NumPy would also read 1_0, nan and the digits of other scripts.
        if not _DIGITS.fullmatch("".join(values)):
            raise ValueError
        return np.array(values, dtype=np.float32)
    except ValueError:
        bad = next((v for v in values if not _NUMBER.fullmatch(v)), "")
        raise LotteryError(
            f"{where} is not a vector: {reprlib.repr(bad)} is not a number"
        ) from None


def _declared(digits: str, where: str) -> int:
    if len(digits) > 9 or int(digits) > _MAX_DIMENSION:
        raise LotteryError(
            f"{where} says that vectors have {reprlib.repr(digits)[1:-1]} numbers; give"
            f" at most {_MAX_DIMENSION:,}"
        )
    return int(digits)
