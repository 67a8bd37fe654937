"""The file of results: one JSON line per run, and what the figures are made of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.files import whole_file

RESULTS = "results.jsonl"
PLANS = "plans"

Result = Dict[str, Any]


def read_results(folder: Path) -> Dict[str, Result]:
    """The last line of each run, by id; a line that was cut off does not count."""
    path = folder / RESULTS
    if not path.exists():
        return {}
    lines = _read(path).splitlines()
    found = {}
    for number, line in enumerate(lines, 1):
        try:
            result = json.loads(line)
            found[result["id"]] = result
        except (ValueError, KeyError, TypeError):
            if number < len(lines):
                raise LotteryError(
                    f"{path}, line {number} is not a result; remove that line"
                ) from None
    return found


def append_result(folder: Path, result: Result) -> None:
    """Add one line, whole or not at all."""
    path = folder / RESULTS
    line = (json.dumps(result, ensure_ascii=False) + "\n").encode()
    with path.open("ab", buffering=0) as file:
        start = file.tell()
        try:
            while line:  # a disk that is nearly full takes a part
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), start)
            raise


def mend_results(folder: Path) -> None:
    """Cut off a last line that a kill left unfinished."""
    path = folder / RESULTS
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with whole_file(path) as file:
            file.write(whole)


def write_plan(folder: Path, plan: Dict[str, Any]) -> None:
    """Keep what a grid asked for, so that figures know what is missing."""
    (folder / PLANS).mkdir(parents=True, exist_ok=True)
    with whole_file(folder / PLANS / f"{plan['name']}.json") as file:
        file.write(json.dumps(plan, indent=1, ensure_ascii=False).encode() + b"\n")


def read_plans(folder: Path) -> List[Dict[str, Any]]:
    """All plans of a folder, by name."""
    plans = []
    for path in sorted((folder / PLANS).glob("*.json")):
        try:
            plans.append(json.loads(_read(path)))
        except ValueError:
            raise LotteryError(f"{path} is not JSON; run the sweep again") from None
    return plans


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LotteryError(f"cannot read {path}: {error}") from None
