"""Read embeddings, their symbols and learned positions from a fairseq checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from torch import Tensor

from onelayer_lottery.checkpoint.dictionaries import (
    all_dictionaries,
    dictionary_folders,
    find_dictionary,
    languages_of,
    read_dictionary,
)
from onelayer_lottery.checkpoint.reading import Checkpoint, load_checkpoint, section_of
from onelayer_lottery.embeddings.vectors import Vectors
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import is_checkpoint
from onelayer_lottery.text.dictionary import read_symbols
from onelayer_lottery.ticket.tasks import MASK

SIDES = ("encoder", "decoder")

# Where fairseq's models keep the embeddings of a side, the most specific first.
_PLACES = {
    "encoder": (
        "encoder.embed_tokens.weight",
        "encoder.sentence_encoder.embed_tokens.weight",
        "decoder.sentence_encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
    ),
    "decoder": (
        "decoder.embed_tokens.weight",
        "decoder.output_projection.weight",
        "decoder.embed_out",
        "encoder.embed_tokens.weight",
        "encoder.sentence_encoder.embed_tokens.weight",
        "decoder.sentence_encoder.embed_tokens.weight",
    ),
}
_POSITIONS = tuple(
    name.replace("embed_tokens", "embed_positions") for name in _PLACES["encoder"][:3]
)


def read_checkpoint_vectors(
    path: Path, side: str, *, dictionary: Optional[Path], trust: bool
) -> Vectors:
    """Read the embeddings of a side; their symbols are those of ``dictionary``.

    Without it, search for the dictionary of the side.
    """
    state = _load(path, trust)
    tensors = state["model"]
    name = next((n for n in _PLACES[side] if n in tensors), None)
    if name is None:
        raise LotteryError(
            f"{path} has no {side} embeddings; it holds"
            f" {', '.join(str(key)[:80] for key in list(tensors)[:3])}, ..."
        )
    matrix = _matrix(tensors, name, path)
    file = dictionary or _dictionary_of(path, state, name)
    symbols = dictionary_symbols(file) if file else None
    # RoBERTa's tasks add this symbol to the dictionary when they read it.
    if symbols and ".sentence_encoder." in name and len(matrix) > len(symbols):
        symbols += [MASK] if MASK not in symbols else []
    return Vectors(matrix, symbols)


def read_positions(path: Path, *, trust: bool = False) -> Optional[Tensor]:
    """Read the learned positions of an encoder (rows, dimension), if it has them."""
    if not is_checkpoint(path):
        return None
    tensors = _load(path, trust)["model"]
    name = next((n for n in _POSITIONS if n in tensors), None)
    return None if name is None else _matrix(tensors, name, path)


def checkpoint_symbols(path: Path, state: Checkpoint, side: str) -> Optional[List[str]]:
    """Return the symbols of a checkpoint's side, if their dictionary is found."""
    file = _dictionary_of(path, state, side)
    return dictionary_symbols(file) if file else None


def dictionary_symbols(path: Path) -> List[str]:
    """Read the symbols of a fairseq dictionary in the order of their rows."""
    text = read_dictionary(path)
    try:
        return read_symbols(text).words
    except LotteryError as error:
        raise LotteryError(f"the dictionary {path}: {error}") from None


def _matrix(tensors: Dict[str, Any], name: str, path: Path) -> Tensor:
    """Return a matrix of a checkpoint in fp32."""
    tensor = tensors[name]
    if tensor.dim() != 2 or not tensor.is_floating_point() or not tensor.numel():
        raise LotteryError(
            f"{name} of {path} is {tensor.dtype} of shape {tuple(tensor.shape)}, not a"
            " matrix of numbers; give another checkpoint"
        )
    return tensor.detach().float()


def _load(path: Path, trust: bool) -> Checkpoint:
    try:
        return load_checkpoint(path, trust=trust)
    except LotteryError as error:
        hint = "; pass --trust-checkpoint if you trust its maker"
        forbidden = "may run code" in str(error)
        raise LotteryError(f"{error}{hint if forbidden else ''}") from None


def _dictionary_of(path: Path, state: Checkpoint, name: str) -> Optional[Path]:
    """Return the dictionary of the side that a tensor or module ``name`` is on.

    If none has its name, a folder's only dictionary is used, or copies of one.
    """
    flags = section_of(state, "task")
    side = "source" if name.startswith("encoder") else "target"
    folders = dictionary_folders(flags, beside=path.parent)
    language = languages_of(flags, folders)[side]
    for folder in folders:
        file = find_dictionary(folder, side, language)
        if file:
            return file
        files = all_dictionaries(folder)
        if len({read_dictionary(file) for file in files}) > 1:
            raise LotteryError(
                f"{path} does not say which of {', '.join(f.name for f in files)} is"
                f" its {side}_lang; give it as --embed-dict"
            )
        if files:
            return files[0]
    return None
