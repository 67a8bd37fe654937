"""Fairseq's tasks, as far as a ticket knows them: flags, dictionaries, criterion."""

from __future__ import annotations

from argparse import Namespace
from io import StringIO
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from torch import Tensor

from onelayer_lottery.configuration import LANGUAGE
from onelayer_lottery.container import quote
from onelayer_lottery.embeddings import MASK
from onelayer_lottery.errors import LotteryError


class Kind(NamedTuple):
    """A task of fairseq for which tickets are made."""

    name: str
    flags: Tuple[str, ...]  # that a ticket keeps
    embeddings: Dict[str, str]  # side of a dictionary -> layer with a row per symbol
    criterion: str  # fairseq's name of one with which it is trained
    criterion_class: str
    criterion_flags: Tuple[str, ...] = ()  # of the task's
    # What fairseq would take from sections that a checkpoint of ours does not have.
    task_values: Tuple[Tuple[str, Any], ...] = ()
    criterion_values: Tuple[Tuple[str, Any], ...] = ()


TRANSLATION = Kind(
    "translation",
    (
        *("source_lang", "target_lang", "left_pad_source", "left_pad_target"),
        *("max_source_positions", "max_target_positions"),
    ),
    {"source": "encoder.embed_tokens", "target": "decoder.embed_tokens"},
    "label_smoothed_cross_entropy",
    "LabelSmoothedCrossEntropyCriterion",
)
_ROBERTA = {"source": "encoder.sentence_encoder.embed_tokens"}
SENTENCE_PREDICTION = Kind(
    "sentence_prediction",
    (
        *("num_classes", "init_token", "separator_token", "max_positions"),
        *("classification_head_name", "regression_target", "shorten_method"),
        "no_shuffle",
    ),
    _ROBERTA,
    "sentence_prediction",
    "SentencePredictionCriterion",
    ("classification_head_name", "regression_target"),
    task_values=(("seed", 1),),
)
MASKED_LM = Kind(
    "masked_lm",
    (
        *("tokens_per_sample", "sample_break_mode", "shorten_method", "mask_prob"),
        *("leave_unmasked_prob", "random_token_prob", "freq_weighted_replacement"),
        "mask_whole_words",
    ),
    _ROBERTA,
    "masked_lm",
    "MaskedLmLoss",
    task_values=(("seed", 1),),
    criterion_values=(("tpu", False),),
)
_EXTRA_LABELS = 64  # fairseq-preprocess pads dictionaries to a multiple of 8
_KINDS = {kind.name: kind for kind in (SENTENCE_PREDICTION, MASKED_LM)}


class Dictionaries(NamedTuple):
    """The dictionaries of a model as text, and what their file names say."""

    texts: Dict[str, str]  # by side: source, and target or label
    flags: Dict[str, str]  # the languages of a translation model


def translation_dictionaries(
    source_lang: str, target_lang: str, source: str, target: str
) -> Dictionaries:
    """Both dictionaries of a translation model as text, with their languages."""
    flags = {"source_lang": source_lang, "target_lang": target_lang}
    return Dictionaries({"source": source, "target": target}, flags)


def kind_of_task(name: Optional[str]) -> Kind:
    """The kind of a task; all that is not of sentences or masked words translates."""
    return _KINDS.get(str(name), TRANSLATION)


def task_name(task: Namespace) -> Optional[str]:
    """The name of a checkpoint's task."""
    return getattr(task, "_name", None) or getattr(task, "task", None)


def find_task_dictionaries(
    task: Namespace, *, beside: Path, given: Optional[Path] = None
) -> Dictionaries:
    """Read the dictionaries of a task: in a folder that is given, or else beside the
    checkpoint and where the training data were.

    The languages are those of the task, or if it does not say, of the binarised data in
    the folder.
    """
    kind = kind_of_task(task_name(task))
    data = str(getattr(task, "data", "")).split(":")[0]
    folders = [given] if given else [beside, *([Path(data)] if data else [])]
    for folder in filter(_is_folder, folders):
        names, flags = _files(kind, task, folder)
        paths = {side: folder / name for side, name in names.items()}
        if all(path.is_file() for path in paths.values()):
            return Dictionaries({s: _read_text(p) for s, p in paths.items()}, flags)
    names, _ = _files(kind, task, None)
    wanted = " and ".join(names.values())
    places = ", ".join(str(folder) for folder in folders)
    raise LotteryError(
        f"found no {wanted} in {places}; give their folder as --data DIR"
    )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LotteryError(f"cannot read the dictionary {path}: {error}") from None


def read_symbols(
    text: str, kind: Kind = TRANSLATION, *, most: Optional[int] = None
) -> Dictionary:
    """A dictionary as the task makes it of its file, of ``most`` symbols if given."""
    symbols = Dictionary()
    lines = text.count("\n") + 1
    if most is not None and lines > most:
        raise LotteryError(f"it has {lines} lines for {most} embeddings")
    try:
        symbols.add_from_file(StringIO(text))
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise LotteryError(f"it cannot be read: {quote(reason)}") from None
    if kind is not TRANSLATION:
        symbols.add_symbol(MASK)
    return symbols


def read_classes(text: str, count: int) -> List[str]:
    """The labels of a classification head in the order of its outputs."""
    symbols = read_symbols(text, most=count + _EXTRA_LABELS)
    labels = symbols.symbols[symbols.nspecial :][:count]
    if len(labels) < count:
        raise LotteryError(
            f"the dictionary of labels has {len(labels)}, the model {count} classes"
        )
    return labels


def check_sizes(
    dictionaries: Dictionaries,
    kind: Kind,
    tensors: Dict[str, Tensor],
    *,
    classes: Optional[int],
) -> None:
    """Refuse dictionaries that a checkpoint was not trained with."""
    for side, layer in kind.embeddings.items():
        symbols = len(read_symbols(dictionaries.texts[side], kind))
        for key in (".masked.scores", ".weight"):
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


def _files(
    kind: Kind, task: Namespace, folder: Optional[Path]
) -> Tuple[Dict[str, str], Dict[str, Any]]:
    """Files of the dictionaries in a folder by side, and the flags that these name."""
    if kind is MASKED_LM:
        return {"source": "dict.txt"}, {}
    if kind is SENTENCE_PREDICTION:
        files = {"source": "input0/dict.txt", "label": "label/dict.txt"}
        if getattr(task, "regression_target", False) is True:
            del files["label"]
        return files, {}
    known = (getattr(task, "source_lang", None), getattr(task, "target_lang", None))
    for language in known:
        text = language if isinstance(language, str) else "?"
        if language is not None and text and not LANGUAGE.fullmatch(text):
            raise LotteryError(f"its language {quote(language)} is not the code of one")
    if folder and not all(known):
        known = infer_language_pair(str(folder))
    source, target = (f"dict.{lang or 'LANGUAGE'}.txt" for lang in known)
    flags = {"source_lang": known[0], "target_lang": known[1]}
    return {"source": source, "target": target}, flags
