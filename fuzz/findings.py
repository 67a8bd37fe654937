"""Cases on disk: findings of a run, and those that are kept for good."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Iterator, Tuple

from fuzz.cases import Case
from fuzz.child import Outcome

FINDINGS = Path(__file__).parent / "findings"
REGRESSIONS = Path(__file__).parent / "regressions"
_DESCRIPTION = "case.json"


def finding_name(command: str, outcome: Outcome) -> str:
    """The same for findings of one cause: a class and the innermost frame."""
    cause = outcome.frame or outcome.detail
    code = hashlib.sha256(cause.encode()).hexdigest()[:8]
    return f"{outcome.kind}-{command}-{code}"


def save_finding(
    case: Case, outcome: Outcome, *, seed: int, number: int, folder: Path = FINDINGS
) -> Path:
    """Write the files of a case, and one line of JSON with what happened."""
    path = folder / finding_name(case.command, outcome)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    case.write(path)
    line = {
        "seed": seed,
        "number": number,
        "command": case.command,
        "arguments": case.arguments,
        "stdin": case.stdin.decode(),
        "note": case.note,
        **{key: getattr(outcome, key) for key in ("kind", "detail", "frame", "stderr")},
    }
    (path / _DESCRIPTION).write_text(json.dumps(line) + "\n", encoding="utf-8")
    return path


def read_cases(folder: Path) -> Iterator[Tuple[str, Case]]:
    """All saved cases of a folder, by name."""
    for description in sorted(folder.glob(f"*/{_DESCRIPTION}")):
        line = json.loads(description.read_text(encoding="utf-8"))
        files = {
            str(path.relative_to(description.parent)): path.read_bytes()
            for path in sorted(description.parent.rglob("*"))
            if path.is_file() and path != description
        }
        yield (
            description.parent.name,
            Case(
                line["command"],
                line["arguments"],
                line["stdin"].encode(),
                line["note"],
                files,
            ),
        )
