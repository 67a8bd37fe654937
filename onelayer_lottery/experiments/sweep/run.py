"""One run in a process of its own: train, generate, score, and write the result.

Started as ``python -m onelayer_lottery.experiments.sweep.run FOLDER`` with
FOLDER/task.json. It can be killed at any point and started again.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Optional

from onelayer_lottery.checkpoint.reading import load_checkpoint
from onelayer_lottery.checkpoint.torn import LAST, mend_last
from onelayer_lottery.compat import fairseq_version
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.sweep.orphans import dying_with_parent
from onelayer_lottery.experiments.sweep.score import (
    bits_of,
    bleu_of,
    curve_of,
    flips_of,
    wall_seconds,
)
from onelayer_lottery.experiments.sweep.size import (
    data_sizes,
    model_signature,
    model_size,
)
from onelayer_lottery.files import whole_file

TASK, RESULT, FAILURE = "task.json", "result.json", "failure.json"
TRAINED = "trained"  # there when the training is done


def main(argv: Optional[List[str]] = None) -> int:
    """Finish the run of a folder; 0 when it is finished, 1 when it failed."""
    folder = Path((sys.argv[1:] if argv is None else argv)[0])
    with (folder / "lock").open("a") as lock:
        # An earlier process of this run may still be on another machine: let it end.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / RESULT).exists():
            return 0
        (folder / FAILURE).unlink(missing_ok=True)
        task = json.loads((folder / TASK).read_text(encoding="utf-8"))
        try:
            result = _run(folder, task)
            _write(folder / RESULT, result)
        except (LotteryError, OSError) as error:
            _record_failure(folder, error)
            return 1
    _tidy(folder, task["checkpoint"])
    return 0


class StepError(LotteryError):
    """A command failed; ``log`` says why."""

    def __init__(self, message: str, log: Path):
        super().__init__(message)
        self.log = log


def _run(folder: Path, task: Dict[str, Any]) -> Dict[str, Any]:
    steps = task["steps"]
    if not (folder / TRAINED).exists():
        mend_last(folder)
        if not _has_all_updates(folder / LAST, task["config"]["train"]):
            _step("fairseq-train", steps["train"], folder / "train.log")
        (folder / TRAINED).touch()
    if "average" in steps:
        _step("average", steps["average"], folder / "average.log")
    checkpoint = folder / task["checkpoint"]
    started = time.time()
    score: Dict[str, Any] = {}
    if "generate" in steps:
        output = folder / "generate.log"
        output.unlink(missing_ok=True)
        _step("fairseq-generate", steps["generate"], output)
        score = bleu_of(
            output, _expected(task), task["reference"] and Path(task["reference"])
        )
    if "eval_lm" in steps:
        output = folder / "eval_lm.log"
        output.unlink(missing_ok=True)
        _step("fairseq-eval-lm", steps["eval_lm"], output)
        score = bits_of(output, task["reference"] and Path(task["reference"]))
    log = (folder / "train.log").read_text(encoding="utf-8", errors="replace")
    curve = curve_of(log)
    accuracies = [point["accuracy"] for point in curve if "accuracy" in point]
    if accuracies:
        score["accuracy"] = max(accuracies)
    state = load_checkpoint(checkpoint)
    return {
        "id": task["id"],
        "status": "finished",
        "variant": task["variant"],
        "seed": task["seed"],
        "signature": model_signature(state, seed=task["seed"], versions=_versions()),
        **score,
        "corpus": task["corpus"],
        "data": data_sizes(Path(task["data"])),
        "config": task["config"],
        "curve": curve,
        "flips": flips_of(log),
        "seconds": {
            "train": wall_seconds(log),
            "generate": round(time.time() - started, 1),
        },
        **model_size(state, folder, data=Path(task["data"])),
        "device": task["device"],
        "versions": _versions(),
        "folder": folder.name,
    }


def _has_all_updates(last: Path, flags: Dict[str, Any]) -> bool:
    """Whether a kill came after the last checkpoint of a training.

    fairseq would train one more update. Masked models prevent that themselves.
    """
    most = float(flags.get("max-update") or 0)
    if not most or not last.is_file():
        return False
    return load_checkpoint(last)["optimizer_history"][-1]["num_updates"] >= most


def _step(name: str, words: List[str], log: Path) -> None:
    with log.open("ab") as file:
        status = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_own_environment(),
            preexec_fn=dying_with_parent(),
            check=False,
        ).returncode
    if status:
        raise StepError(
            f"{name} ended with status {status}: {_last_words(log)}", log.resolve()
        )


def _own_environment() -> Dict[str, str]:
    """Return the environment without the variables of SLURM and torchrun.

    fairseq would join the job that they describe. A run is on one machine, and fairseq
    starts its processes.
    """
    foreign = r"SLURM_.*|MASTER_(ADDR|PORT)|(LOCAL_)?(RANK|WORLD_SIZE)"
    return {k: v for k, v in os.environ.items() if not re.fullmatch(foreign, k)}


def _last_words(log: Path) -> str:
    """Return the last line of a failed command's log, or the one about a full disk."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    full = [line for line in lines[-60:] if os.strerror(28) in line]
    candidates = full or [line for line in lines if line.strip()] or ["nothing"]
    return candidates[-1].strip()[-300:]


def _expected(task: Dict[str, Any]) -> int:
    """Return how many sentences are to be translated."""
    words = task["steps"]["generate"]
    subset = (
        words[words.index("--gen-subset") + 1] if "--gen-subset" in words else "test"
    )
    sizes = data_sizes(Path(task["data"]))
    if subset not in sizes:
        raise LotteryError(f"{task['data']} holds no data of {subset} to translate")
    return sizes[subset]


def _tidy(folder: Path, checkpoint: str) -> None:
    for path in folder.glob("checkpoint*.pt*"):
        if path.name != checkpoint:
            path.unlink()


def _record_failure(folder: Path, error: Exception) -> None:
    log = getattr(error, "log", folder / "run.log")
    failure = {"reason": str(error), "log": str(log)}
    print(f"failed: {error}", flush=True)
    _write(folder / FAILURE, failure)


def _write(path: Path, content: Dict[str, Any]) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(content, ensure_ascii=False).encode())


def _versions() -> Dict[str, str]:
    names = ("onelayer_lottery", "torch", "numpy", "sacrebleu")
    versions = {"python": platform.python_version(), "fairseq": fairseq_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = getattr(sys.modules.get(name), "__version__", "unknown")
    return versions


if __name__ == "__main__":
    sys.exit(main())
