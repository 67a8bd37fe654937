"""The dictionaries of a checkpoint: where they are, and whether they fit it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from fairseq.data import Dictionary
from torch import Tensor

from onelayer_lottery.checkpoint.dictionaries import (
    dictionary_folders,
    find_dictionary,
    languages_of,
    read_dictionary,
)
from onelayer_lottery.checkpoint.reading import Checkpoint, section_of
from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.planting.tensor_names import SCORES
from onelayer_lottery.text.dictionary import read_classes
from onelayer_lottery.ticket.configuration import LANGUAGE
from onelayer_lottery.ticket.tasks import TRANSLATION, Task, task_named


class Dictionaries(NamedTuple):
    """The dictionaries of a model as text, and the flags that their names give."""

    texts: Dict[str, str]  # by side: source, and target or label
    flags: Dict[str, Optional[str]]  # the languages of a translation model


def translation_dictionaries(
    source_lang: str, target_lang: str, source: str, target: str
) -> Dictionaries:
    """Return both dictionaries of a translation model with their languages."""
    flags: Dict[str, Optional[str]] = {
        "source_lang": source_lang,
        "target_lang": target_lang,
    }
    return Dictionaries({"source": source, "target": target}, flags)


def task_of_flags(flags: Dict[str, Any]) -> Task:
    """Return the task that a checkpoint's flags name."""
    return task_named(flags.get("_name") or flags.get("task"))


def find_dictionaries(
    state: Checkpoint, *, beside: Path, given: Optional[Path] = None
) -> Dictionaries:
    """Read the dictionaries that a checkpoint was trained with.

    Search the folder ``given``, or else ``beside``, the folder of the checkpoint, and
    the folder of its training data.
    """
    flags = section_of(state, "task")
    task = task_of_flags(flags)
    folders = dictionary_folders(flags, beside=beside, given=given)
    files = dict(task.files)
    if flags.get("regression_target", False) is True:
        files.pop("label", None)
    languages: Dict[str, Optional[str]] = {}
    if task is TRANSLATION:
        for side in ("source_lang", "target_lang"):
            _check_language(flags.get(side))
        languages = languages_of(flags, folders)
    for folder in folders:
        paths = {s: find_dictionary(folder, s, languages.get(s)) for s in files}
        if all(paths.values()):
            texts = {s: read_dictionary(path) for s, path in paths.items() if path}
            return Dictionaries(texts, {f"{s}_lang": v for s, v in languages.items()})
    wanted = " and ".join(
        name.replace("LANGUAGE", languages.get(side) or "LANGUAGE")
        for side, name in files.items()
    )
    places = ", ".join(map(str, folders))
    raise LotteryError(
        f"found no {wanted} in {places}; give their folder as --data DIR"
    )


def _check_language(language: Any) -> None:
    text = language if isinstance(language, str) else "?"
    if language is not None and text and not LANGUAGE.fullmatch(text):
        raise LotteryError(
            f"its language {quote(language)} is not a code such as de or en"
        )


def read_symbols(
    text: str, task: Task = TRANSLATION, *, most: Optional[int] = None
) -> Dictionary:
    """Parse a dictionary as its task does; refuse more than ``most`` lines."""
    symbols = Dictionary()
    lines = text.count("\n") + 1
    if most is not None and lines > most:
        raise LotteryError(f"it has {lines} lines for {most} embeddings")
    try:
        symbols.add_from_file(StringIO(text))
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise LotteryError(f"it cannot be read: {quote(reason)}") from None
    if task.added:
        symbols.add_symbol(task.added)
    return symbols


def check_sizes(
    dictionaries: Dictionaries,
    task: Task,
    tensors: Dict[str, Tensor],
    *,
    classes: Optional[int],
) -> None:
    """Refuse dictionaries that a checkpoint was not trained with."""
    for side, layer in task.embeddings.items():
        symbols = len(read_symbols(dictionaries.texts[side], task))
        for key in (SCORES, ".weight"):
            matrix = tensors.get(f"{layer}{key}")
            if matrix is not None and matrix.shape[:1] != (symbols,):
                rows = matrix.shape[0] if matrix.dim() else 0
                named = dictionaries.flags.get(f"{side}_lang", side)
                raise LotteryError(
                    f"the dictionary of {named} has {symbols} symbols, the"
                    f" {layer.partition('.')[0]} {rows} embeddings; give the"
                    " folder of the dictionaries that it was trained with as --data DIR"
                )
    if "label" in dictionaries.texts:
        read_classes(dictionaries.texts["label"], classes or 0)
