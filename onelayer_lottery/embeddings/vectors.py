"""A matrix of embeddings with symbols: match it to a dictionary, write it as text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import List, NamedTuple, Optional

import torch
from torch import Tensor

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import whole_file

logger = logging.getLogger(__name__)


class Vectors(NamedTuple):
    """A matrix of embeddings, and the symbol of each row if they are known."""

    matrix: Tensor  # (rows, dimension), fp32
    symbols: Optional[List[str]]


def align(
    vectors: Vectors,
    symbols: List[str],
    *,
    path: Path,
    dimension: int,
    missing: Tensor,
    allowed: float,
) -> Tensor:
    """Return the vectors in the order of the task's symbols (symbols, dimension).

    Symbols without a vector get their row of ``missing``; more than the fraction
    ``allowed`` of them is an error.
    """
    matrix = vectors.matrix
    if matrix.shape[1] != dimension:
        raise LotteryError(
            f"{path} has embeddings of dimension {matrix.shape[1]}, the model is of"
            f" {dimension}; give embeddings of the model's width"
        )
    if vectors.symbols is None:
        if len(matrix) != len(symbols):
            raise LotteryError(
                f"{path} has {len(matrix)} rows and no dictionary beside it, the task"
                f" {len(symbols)} symbols; give its dictionary as --embed-dict"
            )
        logger.warning(
            "%s: no dictionary found; its %s rows are taken in the task's order",
            path,
            len(matrix),
        )
        return matrix.clone()
    row_of = {symbol: row for row, symbol in enumerate(vectors.symbols)}
    rows = [row_of.get(symbol, -1) for symbol in symbols]
    absent = [symbol for symbol, row in zip(symbols, rows) if row < 0]
    shown = ", ".join(absent[:10]) + (", ..." if len(absent) > 10 else "")
    logger.info(
        "%s: found %s of %s symbols, %s missing%s",
        path,
        len(symbols) - len(absent),
        len(symbols),
        len(absent),
        f": {shown}" if absent else "",
    )
    if len(absent) > allowed * len(symbols):
        raise LotteryError(
            f"{path} lacks {len(absent)} of the {len(symbols)} symbols of the task,"
            f" more than --embed-missing {allowed:g} allows: {shown}"
        )
    index = torch.tensor(rows)
    return torch.where((index < 0).unsqueeze(1), missing, matrix[index.clamp(min=0)])


def write_text(path: Path, vectors: Vectors) -> None:
    """Write vectors as the text that stock fairseq reads, exact to the last bit."""
    rows, dimension = vectors.matrix.shape
    try:
        with whole_file(path) as file:
            file.write(f"{rows} {dimension}\n".encode())
            for symbol, row in zip(vectors.symbols or [], vectors.matrix.tolist()):
                values = " ".join(map(repr, row))
                file.write(f"{symbol} {values}\n".encode())
    except OSError as error:
        raise LotteryError(f"cannot write {path}: {error.strerror}") from None
