"""Values of a grid file, each checked for its type when it is taken."""

from __future__ import annotations

import re
import reprlib
from typing import Any, Dict, Tuple

from onelayer_lottery.errors import LotteryError

# Flags that the sweep sets, and what to do instead.
_TAKEN = {
    "seed": "list the seeds under seeds",
    "mask-seed": "list the seeds under seeds",
    "data": "name the folder under data",
    "save-dir": "each run has a folder of its own",
    "path": "the best checkpoint of the run is used",
    "results-path": "each run has a folder of its own",
    "user-dir": "it is this package",
    "log-format": "the sweep reads the log",
    "log-file": "the log is in the folder of the run",
    "tensorboard-logdir": "the log is in the folder of the run",
    "cpu": "a CPU is used where there is no GPU",
}
_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_MAX_WHOLE = 10_000


def flags_in(section: Dict[str, Any], where: str) -> Dict[str, Any]:
    """Return the flags of fairseq in a section; refuse those that the sweep sets."""
    flags: Dict[str, Any] = {}
    for key, value in section.items():
        name = key.lstrip("-").replace("_", "-")
        if name in _TAKEN:
            raise LotteryError(f"{where}: leave out {key}: {_TAKEN[name]}")
        if not _FLAG.fullmatch(name):
            raise LotteryError(
                f"{where}: {shown(key)} is not the name of a flag; give one of fairseq"
            )
        if name in flags:
            raise LotteryError(f"{where} has {name} twice")
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, (dict, list)) for item in values):
            raise LotteryError(
                f"{where}: {key} holds a list or a mapping; give a value, or a list of"
                " values"
            )
        flags[name] = value
    return flags


def section_in(content: Dict[str, Any], key: str) -> Dict[str, Any]:
    section = content.get(key)
    if not isinstance(section, (dict, type(None))):
        raise LotteryError(f"{key} is not a mapping of names to values")
    return section or {}


def text_in(content: Dict[str, Any], key: str, default: str, *, where: str = "") -> str:
    value = content.get(key)
    if isinstance(value, (dict, list)):
        raise LotteryError(f"{where}{key} is {shown(value)}; give text")
    return default if value is None else str(value)


def whole_in(content: Dict[str, Any], key: str, default: Any) -> Any:
    if key not in content:
        return default
    value = content[key]
    if type(value) is not int or not 1 <= value <= _MAX_WHOLE:
        raise LotteryError(
            f"{key} is {shown(value)}; give a whole number from 1 to {_MAX_WHOLE}"
        )
    return value


def shown(value: Any) -> str:
    return reprlib.repr(value)


def refuse_unknown(content: Dict[str, Any], known: Tuple[str, ...], what: str) -> None:
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise LotteryError(
            f"unknown {what} {', '.join(unknown)}; known are {', '.join(known)}"
            " (flags of fairseq go under base or a variant)"
        )
