"""Pre-trained embeddings: read from a file, matched to a dictionary by symbol."""

from __future__ import annotations

import json
import logging
import math
import re
import reprlib
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

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
_LANGUAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_DICTIONARY = re.compile(rf"dict\.({_LANGUAGE.pattern}\.)?txt")
_DIGITS = re.compile(r"[0-9.eE+-]*")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_LINE = 1 << 20  # characters of a line of text
_MAX_DIMENSION = 100_000
_MAX_HEADER = 4 << 20  # bytes of a safetensors header
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "F64": np.dtype("<f8")}


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
    name = next((n for n in _POSITIONS if n in tensors), None)
    return None if name is None else _matrix(tensors, name, path)


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
            f"{path} has no {side} embeddings; it holds"
            f" {', '.join(str(key)[:80] for key in list(tensors)[:3])}, ..."
        )
    matrix = _matrix(tensors, name, path)
    found = dictionary or _dictionary_beside(path, state, name)
    symbols = _symbols(found)
    # RoBERTa's tasks add this symbol to the dictionary when they read it.
    if symbols and ".sentence_encoder." in name and len(matrix) > len(symbols):
        symbols += [MASK] if MASK not in symbols else []
    return Vectors(matrix, symbols)


def _matrix(tensors: Dict[str, Any], name: str, path: Path) -> Tensor:
    """A tensor of a checkpoint that holds embeddings, in fp32."""
    tensor = tensors[name]
    if tensor.dim() != 2 or not tensor.is_floating_point() or not tensor.numel():
        raise LotteryError(
            f"{name} of {path} is {tensor.dtype} of shape {tuple(tensor.shape)}, not a"
            " matrix of numbers; give another checkpoint"
        )
    return tensor.detach().float()


def _load(path: Path, trust: bool) -> Dict[str, Any]:
    try:
        return load_checkpoint(path, trust=trust)
    except LotteryError as error:
        hint = "; pass --trust-checkpoint if you trust its maker"
        forbidden = "may run code" in str(error)
        raise LotteryError(f"{error}{hint if forbidden else ''}") from None


def _dictionary_beside(path: Path, state: Dict[str, Any], name: str) -> Optional[Path]:
    """The dictionary of a checkpoint's side: beside it, or where its data were.

    A checkpoint may name any folder; only a dictionary is looked for there.
    """
    task = _values(_values(state.get("cfg")).get("task")) or _values(state.get("args"))
    place = 0 if name.startswith("encoder") else 1
    data = _first_folder(task.get("data"))
    key = ("source_lang", "target_lang")[place]
    language = task.get(key)
    if not (isinstance(language, str) and _LANGUAGE.fullmatch(language)):
        language = None
    # The data of sentence pairs have a folder for each column.
    folders = [path.parent, *([data, data / "input0"] if data else [])]
    try:
        if not language and data:
            language = infer_language_pair(str(data))[place]
        for folder in folders:
            chosen = _dictionary_in(folder, language)
            if isinstance(chosen, list):
                raise LotteryError(
                    f"{path} does not say which of {', '.join(chosen)} is its {key};"
                    " give it as --embed-dict"
                )
            if chosen:
                return chosen
    except OSError as error:
        raise LotteryError(
            f"cannot look for the dictionary of {path}: {error.strerror}; give it as"
            " --embed-dict"
        ) from None
    return None


def _dictionary_in(folder: Path, language: Any) -> Union[Path, List[str], None]:
    """The dictionary of a language in a folder; the names of several that differ."""
    candidates = [
        file
        for file in sorted(folder.glob("dict.*txt") if folder.is_dir() else [])
        if _DICTIONARY.fullmatch(file.name) and file.is_file()
    ]
    for name in (f"dict.{language}.txt", "dict.txt"):
        for file in candidates:
            if file.name == name:
                return file
    if len({file.read_bytes() for file in candidates}) > 1:
        return [file.name for file in candidates]
    return candidates[0] if candidates else None


def _values(config: Any) -> Dict[str, Any]:
    """The values of a part of a checkpoint's configuration, whatever its form."""
    if isinstance(config, Namespace):
        return vars(config)
    return config if isinstance(config, dict) else {}


def _first_folder(data: Any) -> Optional[Path]:
    """The folder that a checkpoint names as that of its data, if there is one."""
    first = data[0] if isinstance(data, list) and data else data
    if not isinstance(first, str) or not first:
        return None
    folder = Path(first.split(":")[0])
    try:
        return folder if folder.is_dir() else None
    except (OSError, ValueError):  # no name of a folder
        return None


def _from_text(path: Path) -> Vectors:
    """word2vec or fastText with a header of two numbers, or GloVe without."""
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


def _from_safetensors(path: Path) -> Tensor:
    """The one matrix of a safetensors file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            room = path.stat().st_size - 8 - length
            if room < 0:
                raise ValueError("its header is cut short")
            if length > _MAX_HEADER:
                raise ValueError(
                    f"its header has {length:,} bytes, more than {_MAX_HEADER:,}"
                )
            (start, end), dtype, shape = _layout(_header(file.read(length)), room)
            file.seek(8 + length + start)
            values = np.frombuffer(file.read(end - start), dtype)
            matrix = values.reshape(shape).astype(np.float32)
    except ValueError as error:
        raise LotteryError(f"cannot read {path} as safetensors: {error}") from None
    return torch.from_numpy(matrix)


def _header(text: bytes) -> Dict[str, Any]:
    """The entries of a safetensors header, of which the first character is {."""
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except LotteryError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("its header is not JSON") from None
    entries.pop("__metadata__", None)
    return entries


def _without_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    entries: Dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise LotteryError(f"its header has {name[:80]} twice")
        entries[name] = value
    return entries


def _layout(
    entries: Dict[str, Any], room: int
) -> Tuple[List[int], np.dtype, List[int]]:
    """Where the one matrix is in ``room`` bytes, its type and shape."""
    matrices = {}
    for name, entry in entries.items():
        shown = reprlib.repr(name)[1:-1]
        if not isinstance(entry, dict):
            raise ValueError(
                f"its entry {shown} is {reprlib.repr(entry)}, not an object"
            )
        shape = entry.get("shape")
        if not _are_whole(shape, lowest=1):
            raise ValueError(
                f"the shape of {shown} is {reprlib.repr(shape)}; give whole numbers"
                " from 1 on"
            )
        if len(shape) == 2:
            matrices[shown] = entry
    if len(matrices) != 1:
        raise ValueError(f"it has {len(matrices)} matrices, not one")
    ((name, entry),) = matrices.items()
    shape, offsets, code = entry["shape"], entry.get("data_offsets"), entry.get("dtype")
    if not isinstance(code, str) or code not in _DTYPES:
        raise ValueError(
            f"the type of {name} is {reprlib.repr(code)}; give {', '.join(_DTYPES)}"
        )
    if (
        not _are_whole(offsets, lowest=0)
        or len(offsets) != 2
        or offsets[0] > offsets[1]
    ):
        raise ValueError(
            f"the offsets of {name} are {reprlib.repr(offsets)}; give where its data"
            " start and end"
        )
    if offsets[1] > room:
        raise ValueError("it is cut short")
    stored = offsets[1] - offsets[0]
    if stored != math.prod(shape) * _DTYPES[code].itemsize:
        raise ValueError(f"{stored:,} bytes do not hold the shape of {name}")
    return offsets, _DTYPES[code], shape


def _are_whole(numbers: Any, *, lowest: int) -> bool:
    """Whether these are whole numbers in a list; True and 1.0 are not."""
    return isinstance(numbers, list) and all(
        type(number) is int and number >= lowest for number in numbers
    )
