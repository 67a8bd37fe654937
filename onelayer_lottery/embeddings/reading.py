"""Read embeddings from a file of any supported format."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import torch

from onelayer_lottery.embeddings.checkpoint_file import (
    dictionary_symbols,
    read_checkpoint_vectors,
)
from onelayer_lottery.embeddings.safetensors_file import read_safetensors
from onelayer_lottery.embeddings.text_file import read_text
from onelayer_lottery.embeddings.vectors import Vectors
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import is_checkpoint


def read_vectors(
    path: Path, side: str, *, dictionary: Optional[Path] = None, trust: bool = False
) -> Vectors:
    """Read embeddings from a checkpoint, a text file or a safetensors file.

    A text file names its symbols. Those of other files are in ``dictionary``; without
    it, the dictionary of a checkpoint is searched for.
    """
    if path.is_dir():
        raise LotteryError(f"{path} is a folder; give a file of embeddings")
    if not path.is_file():
        raise LotteryError(f"{path} does not exist; give a file of embeddings")
    with path.open("rb") as file:
        start = file.read(9)
    if is_checkpoint(path):
        vectors = read_checkpoint_vectors(
            path, side, dictionary=dictionary, trust=trust
        )
    elif len(start) == 9 and start[8:9] == b"{":
        vectors = Vectors(
            read_safetensors(path),
            dictionary_symbols(dictionary) if dictionary else None,
        )
    else:
        vectors = read_text(path)
    rows, symbols = len(vectors.matrix), vectors.symbols
    if symbols is not None and len(symbols) != rows:
        raise LotteryError(
            f"{path} has {rows} rows of embeddings, its dictionary {len(symbols)}"
            " symbols; give the dictionary that it was trained with as --embed-dict"
        )
    if not torch.isfinite(vectors.matrix).all():
        bad = (~torch.isfinite(vectors.matrix).all(1)).nonzero()[0].item()
        name = f" ({symbols[bad]})" if symbols else ""
        raise LotteryError(f"row {bad}{name} of the embeddings in {path} is not finite")
    return vectors
