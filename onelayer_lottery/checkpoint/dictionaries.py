"""Find the dictionaries that a checkpoint was trained with.

Tickets and imported embeddings use the same rule. The folders searched are the one that
the user gives, or else the folder of the checkpoint and then that of its training data.
In a folder, the dictionary of a side is the first of these files that exists:

    source, target   dict.LANGUAGE.txt, input0/dict.txt, dict.txt
    label            label/dict.txt

A checkpoint may name any folder and any language. Only regular files with one of these
names are read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Optional

from fairseq.data.data_utils import infer_language_pair

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.ticket.configuration import LANGUAGE

_DICTIONARY = re.compile(rf"dict\.({LANGUAGE.pattern}\.)?txt")


def dictionary_folders(
    task: Dict[str, Any], *, beside: Path, given: Optional[Path] = None
) -> List[Path]:
    """Return the folders to search; ``task`` has the flags of the checkpoint's task."""
    if given:
        return [given]
    data = task.get("data")
    data = data[0] if isinstance(data, list) and data else data
    if isinstance(data, str) and data.split(":")[0]:
        return [beside, Path(data.split(":")[0])]
    return [beside]


def languages_of(task: Dict[str, Any], folders: List[Path]) -> Dict[str, Optional[str]]:
    """Return the language of each side: the task's, or that of binarised data."""
    languages = {
        side: task.get(f"{side}_lang")
        if _is_language(task.get(f"{side}_lang"))
        else None
        for side in ("source", "target")
    }
    for folder in filter(_is_folder, folders):
        if all(languages.values()):
            break
        try:
            pair = infer_language_pair(str(folder))
        except OSError as error:
            raise LotteryError(
                f"cannot look for dictionaries in {folder}: {error.strerror}"
            ) from None
        for side, language in zip(languages, pair):
            if languages[side] is None and _is_language(language):
                languages[side] = language
    return languages


def find_dictionary(folder: Path, side: str, language: Optional[str]) -> Optional[Path]:
    """Return the file in a folder that is the dictionary of a side, if there is one."""
    names = [f"dict.{language}.txt"] if language else []
    names += ["label/dict.txt"] if side == "label" else ["input0/dict.txt", "dict.txt"]
    if not _is_folder(folder):
        return None
    return next((folder / name for name in names if _is_file(folder / name)), None)


def all_dictionaries(folder: Path) -> List[Path]:
    """Return every file in a folder that is named as a dictionary."""
    if not _is_folder(folder):
        return []
    files = sorted(folder.glob("dict.*txt"))
    return [
        file for file in files if _DICTIONARY.fullmatch(file.name) and _is_file(file)
    ]


def read_dictionary(path: Path) -> str:
    """Read the text of a dictionary."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LotteryError(f"cannot read the dictionary {path}: {error}") from None


def _is_language(value: Any) -> bool:
    return isinstance(value, str) and bool(LANGUAGE.fullmatch(value))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a zero byte
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be read
        return False
