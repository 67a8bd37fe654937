"""Results of a sweep: one line of JSON per run, and a plan per grid for the figures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.files import whole_file

RESULTS = "results.jsonl"
PLANS = "plans"

Result = Dict[str, Any]

# The form of a line; a key that ends with ? may be absent.
_NUMBER = (int, float)
_LARGEST = 1e15  # of all numbers: arrays hold them
_TEXT = (str,)
_COUNTS = {"fp32?": (int,), "int8?": (int,), "ticket_without_dictionaries?": (int,)}
_RESULT = {"id": _TEXT, "status?": _TEXT}
_FINISHED = {
    **_RESULT,
    "bleu?": _NUMBER,
    "accuracy?": _NUMBER,
    "perplexity?": _NUMBER,
    "bits_per_character?": _NUMBER,
    "bleu_signature?": _TEXT,
    "curve": [{"update": (int,), "nll_loss?": _NUMBER}],
    "flips?": [{"update": (int,), "rate": _NUMBER}],
    "bytes": _COUNTS,
    "weights": {"values?": (int,), "params?": (int,)},
    "versions": {},
    "device": _TEXT,
}
_PLAN = {
    "name": _TEXT,
    "title": _TEXT,
    "figure": (int, type(None)),
    "corpus": _TEXT,
    "variants": [{"name": _TEXT, "label": _TEXT, "table1": (str, type(None))}],
    "runs": [
        {
            "id": _TEXT,
            "variant": _TEXT,
            "seed": (int,),
            "keep": (int, float, type(None)),
        }
    ],
}


def read_results(folder: Path) -> Dict[str, Result]:
    """Return the last line of each run by id; ignore a last line that was cut off."""
    path = folder / RESULTS
    if not path.exists():
        return {}
    lines = _read(path).splitlines()
    results = {}
    for number, line in enumerate(lines, 1):
        try:
            result = json.loads(line)
            _require(result, _RESULT)
            results[result["id"]] = result
        except (ValueError, RecursionError):
            if number < len(lines):
                raise LotteryError(
                    f"{path}, line {number} is not a result; remove that line"
                ) from None
    return results


def read_complete_results(folder: Path) -> Dict[str, Result]:
    """Like ``read_results``; refuse a finished run without what figures need."""
    results = read_results(folder)
    for result in results.values():
        if result.get("status") == "finished":
            try:
                _require(result, _FINISHED)
                _require_size(result)
            except (ValueError, RecursionError):
                raise LotteryError(
                    f"{folder / RESULTS}: the line of {quote(result['id'])} is not"
                    " whole; remove it, and run the sweep again"
                ) from None
    return results


def append_result(folder: Path, result: Result) -> None:
    """Append one line atomically."""
    path = folder / RESULTS
    line = (json.dumps(result, ensure_ascii=False) + "\n").encode()
    with path.open("ab", buffering=0) as file:
        start = file.tell()
        try:
            while line:  # a nearly full disk may write only a part
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), start)
            raise


def drop_partial_line(folder: Path) -> None:
    """Remove a last line that a killed sweep left unfinished."""
    path = folder / RESULTS
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with whole_file(path) as file:
            file.write(whole)


def write_plan(folder: Path, plan: Dict[str, Any]) -> None:
    """Write what a grid asks for, so that figures can name missing runs."""
    (folder / PLANS).mkdir(parents=True, exist_ok=True)
    with whole_file(folder / PLANS / f"{plan['name']}.json") as file:
        file.write(json.dumps(plan, indent=1, ensure_ascii=False).encode() + b"\n")


def read_plans(folder: Path) -> List[Dict[str, Any]]:
    """Return all plans of a folder, by name."""
    plans = []
    for path in sorted((folder / PLANS).glob("*.json")):
        try:
            plan = json.loads(_read(path))
            _require(plan, _PLAN)
            if plan["name"] != path.stem:
                raise ValueError
        except (ValueError, RecursionError):
            raise LotteryError(f"{path} is not a plan; run the sweep again") from None
        plans.append(plan)
    return plans


def _require(value: Any, form: Any) -> None:
    """Raise ValueError on JSON that does not have the form."""
    if isinstance(form, tuple):
        if type(value) not in form:
            raise ValueError
        if type(value) in _NUMBER and not abs(value) <= _LARGEST:  # or it is NaN
            raise ValueError
    elif isinstance(form, list):
        _require(value, (list,))
        for item in value:
            _require(item, form[0])
    else:
        _require(value, (dict,))
        for key, inner in form.items():
            name = key.rstrip("?")
            if name in value:
                _require(value[name], inner)
            elif name == key:
                raise ValueError


def _require_size(result: Result) -> None:
    for part, names in (
        ("bytes", ("fp32", "ticket_without_dictionaries")),
        ("weights", ("values", "params")),
    ):
        if not any(result[part].get(name) for name in names):
            raise ValueError


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LotteryError(f"cannot read {path}: {error}") from None
