"""Pre-trained embeddings: read from a file, matched to a dictionary by symbol."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch
from fairseq.data.data_utils import infer_language_pair
from torch import Tensor

from onelayer_lottery.checkpoint import is_checkpoint, load_checkpoint
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import whole_file

logger = logging.getLogger(__name__)

SIDES = ("encoder", "decoder")

# Where fairseq's models keep the embeddings of a side, most telling first.
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
MASK = "<mask>"  # RoBERTa's, which its dictionary files lack
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's, in its order


class Vectors(NamedTuple):
    """A matrix of embeddings, and the symbol of each row if they are known."""

    matrix: Tensor  # (rows, dimension), fp32
    symbols: Optional[List[str]]


def read_vectors(
    path: Path, side: str, *, dictionary: Optional[Path] = None, trust: bool = False
) -> Vectors:
    """Read embeddings from a checkpoint, a text file or a safetensors file.

    The symbols of a matrix without them are those of ``dictionary``, or for a
    checkpoint of the dictionary of its side beside it.
    """
    if path.is_dir():
        raise LotteryError(f"{path} is a folder; give a file of embeddings")
    if not path.is_file():
        raise LotteryError(f"{path} does not exist; give a file of embeddings")
    with path.open("rb") as file:
        start = file.read(9)
    if is_checkpoint(path):
        vectors = _from_checkpoint(path, side, dictionary, trust)
    elif len(start) == 9 and start[8:9] == b"{":
        vectors = Vectors(_from_safetensors(path), _symbols(dictionary))
    else:
        vectors = _from_text(path)
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


def read_positions(path: Path, *, trust: bool = False) -> Optional[Tensor]:
    """The learned positions of a checkpoint's encoder (rows, dimension), if any."""
    if not is_checkpoint(path):
        return None
    tensors = _load(path, trust)["model"]
    return next((tensors[n].float() for n in _POSITIONS if n in tensors), None)


def checkpoint_symbols(
    path: Path, state: Dict[str, Any], side: str
) -> Optional[List[str]]:
    """The symbols of a checkpoint's side, if their dictionary is found."""
    return _symbols(_dictionary_beside(path, state, side))


def align(
    vectors: Vectors,
    symbols: List[str],
    *,
    path: Path,
    dimension: int,
    missing: Tensor,
    allowed: float,
) -> Tensor:
    """Put the vectors into the order of the task's symbols; (symbols, dimension).

    Rows of symbols that are not found are taken from ``missing``. More than the
    fraction ``allowed`` of them is an error.
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
            "%s: no dictionary found; the order of its %s rows is trusted",
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


def read_dictionary(path: Path) -> List[str]:
    """The symbols of a fairseq dictionary in the order of their rows."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LotteryError(f"cannot read the dictionary {path}: {error}") from None
    symbols = list(_SPECIAL)
    for line in filter(None, lines):
        symbol = line.rsplit(" ", 1)[0]
        if line.endswith("#fairseq:overwrite"):
            symbol = symbol.rsplit(" ", 1)[0]
        symbols.append(symbol)
    return symbols


def _symbols(path: Optional[Path]) -> Optional[List[str]]:
    return None if path is None else read_dictionary(path)


def _from_checkpoint(
    path: Path, side: str, dictionary: Optional[Path], trust: bool
) -> Vectors:
    state = _load(path, trust)
    tensors = state["model"]
    name = next((n for n in _PLACES[side] if n in tensors), None)
    if name is None:
        raise LotteryError(
            f"{path} has no {side} embeddings; it holds {', '.join(list(tensors)[:3])},"
            " ..."
        )
    found = dictionary or _dictionary_beside(path, state, name)
    symbols = _symbols(found)
    # RoBERTa's tasks add this symbol to the dictionary when they read it.
    if symbols and ".sentence_encoder." in name and len(tensors[name]) > len(symbols):
        symbols += [MASK] if MASK not in symbols else []
    return Vectors(tensors[name].float(), symbols)


def _load(path: Path, trust: bool) -> Dict[str, Any]:
    try:
        return load_checkpoint(path, trust=trust)
    except LotteryError as error:
        hint = "; pass --trust-checkpoint if you trust its maker"
        forbidden = "may run code" in str(error)
        raise LotteryError(f"{error}{hint if forbidden else ''}") from None


def _dictionary_beside(path: Path, state: Dict[str, Any], name: str) -> Optional[Path]:
    """The dictionary of a checkpoint's side: beside it, or where its data were."""
    config = state.get("cfg") or {}
    task = config.get("task") or state.get("args") or {}
    values = task if isinstance(task, dict) else vars(task)
    place = 0 if name.startswith("encoder") else 1
    data = _first_folder(values.get("data"))
    key = ("source_lang", "target_lang")[place]
    language = values.get(key)
    if not language and data and data.is_dir():
        language = infer_language_pair(str(data))[place]
    # The data of sentence pairs have a folder for each column.
    folders = [path.parent, *([data, data / "input0"] if data else [])]
    for folder in folders:
        candidates = sorted(folder.glob("dict.*txt")) if folder.is_dir() else []
        exact = [p for p in candidates if p.name == f"dict.{language}.txt"]
        plain = [p for p in candidates if p.name == "dict.txt"]
        same = len({p.read_bytes() for p in candidates}) == 1
        chosen = exact or plain or (candidates[:1] if same else [])
        if chosen:
            return chosen[0]
        if candidates:
            names = ", ".join(p.name for p in candidates)
            raise LotteryError(
                f"{path} does not say which of {names} is its {key}; give it as"
                " --embed-dict"
            )
    return None


def _first_folder(data: Any) -> Optional[Path]:
    first = data[0] if isinstance(data, list) and data else data
    return Path(str(first).split(":")[0]) if first else None


def _from_text(path: Path) -> Vectors:
    """word2vec or fastText with a header of two numbers, or GloVe without."""
    symbols: List[str] = []
    rows: List[np.ndarray] = []
    seen: Dict[str, int] = {}
    dimension = None
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                symbol, *values = line.rstrip("\n").rstrip(" ").split(" ")
                if number == 1 and len(values) == 1 and values[0].isdigit():
                    dimension = int(values[0])
                    continue
                dimension = len(values) if dimension is None else dimension
                if len(values) != dimension or not values:
                    raise LotteryError(
                        f"line {number} of {path} has {len(values)} numbers, the others"
                        f" have {dimension}; it may be cut short"
                    )
                if symbol in seen:
                    raise LotteryError(
                        f"line {number} of {path} has the symbol {symbol} of line"
                        f" {seen[symbol]} again; give each symbol one vector"
                    )
                seen[symbol] = number
                symbols.append(symbol)
                rows.append(np.array(values, dtype=np.float32))
    except UnicodeDecodeError:
        raise LotteryError(
            f"{path} is neither a checkpoint, a safetensors file nor text in UTF-8"
        ) from None
    except ValueError as error:
        if isinstance(error, LotteryError):
            raise
        raise LotteryError(
            f"line {number} of {path} is not a vector: {error}"
        ) from None
    if not rows:
        raise LotteryError(f"{path} has no embeddings")
    return Vectors(torch.from_numpy(np.stack(rows)), symbols)


def _from_safetensors(path: Path) -> Tensor:
    """The one matrix of a safetensors file."""
    types = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        try:
            if length > min(size, 100 << 20):
                raise ValueError("its header is cut short")
            entries = json.loads(file.read(length))
            entries.pop("__metadata__", None)
            matrices = {n: e for n, e in entries.items() if len(e["shape"]) == 2}
            if len(matrices) != 1:
                raise ValueError(f"it has {len(matrices)} matrices, not one")
            ((_, entry),) = matrices.items()
            start, end = entry["data_offsets"]
            dtype = np.dtype(types[entry["dtype"]])
            if end - start != math.prod(entry["shape"]) * dtype.itemsize:
                raise ValueError("its shape does not fit its length")
            if 8 + length + end > size:
                raise ValueError("it is cut short")
            file.seek(8 + length + start)
            values = np.frombuffer(file.read(end - start), dtype)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise LotteryError(f"cannot read {path} as safetensors: {error}") from None
    return torch.from_numpy(values.reshape(entry["shape"]).astype(np.float32))
