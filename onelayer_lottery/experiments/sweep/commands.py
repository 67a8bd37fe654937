"""The commands and the folder of a run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Dict, List

from fairseq.data.data_utils import infer_language_pair

from onelayer_lottery.experiments.sweep.flags import (
    PACKAGE,
    is_language_model,
    is_masked,
    scoring_flags,
)
from onelayer_lottery.experiments.sweep.grid import Grid
from onelayer_lottery.experiments.sweep.runs import Flags, Run, words_of

BEST = "checkpoint_best.pt"
LAST = "checkpoint_last.pt"
MEAN = "checkpoint_mean.pt"


def folder_of(out: Path, run: Run) -> Path:
    """Return the folder of a run, which another grid may have named differently."""
    return next(out.glob(f"*-{run.id}"), out / run.name)


def checkpoint_of(out: Path, run: Run) -> Path:
    """Return the checkpoint that a run leaves for other runs."""
    return folder_of(out, run) / (MEAN if run.average else BEST)


def task_of(run: Run, grid: Grid, *, out: Path, cpu: bool) -> Dict[str, Any]:
    """Return everything that the process of a run needs, as JSON."""
    folder = folder_of(out, run).resolve()
    needs = {
        other.id: str(checkpoint_of(out, other).resolve())
        for other in grid.runs
        if other.id in run.needs
    }
    train = {
        name: needs[str(value)[2:-1]] if _names_run(value, run) else value
        for name, value in run.train.items()
    }
    train.setdefault("required-batch-size-multiple", "1")
    # Another run can import embeddings only from a checkpoint that names its languages.
    source, target = infer_language_pair(str(grid.data))
    if source and target:
        train.setdefault("source-lang", source)
        train.setdefault("target-lang", target)
    own: Flags = {"seed": str(run.seed)}
    if is_masked(str(run.train["arch"])):
        own["mask-seed"] = str(run.seed)
    own.update({"save-dir": str(folder), "log-format": "json"})
    checkpoint = checkpoint_of(out, run).resolve()
    steps = {"train": _fairseq("train", grid, {**train, **own}, cpu=cpu)}
    if run.average:
        steps["average"] = [
            *(sys.executable, "-m", "onelayer_lottery.cli", "average", "--force"),
            *("--last", str(run.average), str(folder), "-o", str(checkpoint)),
        ]
    if run.generate is not None:
        flags: Flags = {"path": str(checkpoint), **scoring_flags(run, grid)}
        name = "eval_lm" if is_language_model(run.train) else "generate"
        steps[name] = _fairseq(name, grid, flags, cpu=cpu)
    return {
        "id": run.id,
        "variant": run.variant,
        "seed": run.seed,
        "config": {
            "train": run.train,
            "generate": run.generate,
            "average": run.average,
        },
        "corpus": grid.corpus,
        "data": str(grid.data.resolve()),
        "reference": grid.reference and str(grid.reference.resolve()),
        "folder": str(folder),
        "checkpoint": checkpoint.name,
        "device": "cpu" if cpu else "gpu",
        "steps": steps,
    }


def paste(words: List[str], *, cpu: bool) -> str:
    """Return a command, ready to paste into a shell."""
    line = " ".join(shlex.quote(word) for word in words)
    return f"OMP_NUM_THREADS=1 {line}" if cpu else line


def _fairseq(name: str, grid: Grid, flags: Flags, *, cpu: bool) -> List[str]:
    words = [sys.executable, "-m", f"fairseq_cli.{name}", str(grid.data.resolve())]
    words += ["--user-dir", str(PACKAGE), *words_of(flags)]
    return [*words, "--cpu"] if cpu else words


def _names_run(value: Any, run: Run) -> bool:
    return isinstance(value, str) and value[2:-1] in run.needs
