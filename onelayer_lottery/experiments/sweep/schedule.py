"""Run every run of a grid, a few at a time, and continue after a stop."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.plot.panels import MEASURES
from onelayer_lottery.experiments.results import (
    Result,
    append_result,
    drop_partial_line,
    read_results,
    write_plan,
)
from onelayer_lottery.experiments.sweep.commands import (
    checkpoint_of,
    folder_of,
    task_of,
)
from onelayer_lottery.experiments.sweep.flags import is_masked
from onelayer_lottery.experiments.sweep.grid import Grid
from onelayer_lottery.experiments.sweep.progress import (
    Progress,
    say,
    share_trained,
)
from onelayer_lottery.experiments.sweep.run import FAILURE, RESULT, TASK, TRAINED
from onelayer_lottery.experiments.sweep.runs import Run
from onelayer_lottery.files import whole_file

_DISK_FULL = os.strerror(28)


def sweep(grid: Grid, out: Path, *, launcher: Any, jobs: int, cpu: bool) -> List[str]:
    """Run what is not finished, and return the names of runs that failed."""
    with _writing(out), _locked(out) as lock, _ended_by_signals():
        drop_partial_line(out)
        write_plan(out, _plan(grid))
        work = _Sweep(grid, out, launcher=launcher, cpu=cpu, lock=lock)
        try:
            work.go(jobs)
        finally:
            launcher.stop(list(work.running.values()))
    return [run.name for run in work.failed]


class _Sweep:
    def __init__(self, grid: Grid, out: Path, *, launcher: Any, cpu: bool, lock: int):
        self.grid, self.out, self.launcher = grid, out, launcher
        self.cpu, self.lock = cpu, lock
        self.runs = list({run.id: run for run in grid.runs}.values())
        self.by_id = {run.id: run for run in self.runs}
        self.finished: Dict[str, Result] = {
            id: result
            for id, result in read_results(out).items()
            if result["status"] == "finished"
        }
        self.again: Set[str] = set()  # ids of finished runs that are run again
        self.failed: List[Run] = []
        self.running: Dict[str, Any] = {}  # handles of the launcher, by id of the run
        for run in self.runs:
            if run.id not in self.finished:
                self._collect(run)
        self._forget_lost()
        self.progress = Progress(len(self.runs), self._share_done())

    def go(self, jobs: int) -> None:
        waiting = [run for run in self.runs if run.id not in self.finished]
        if len(waiting) < len(self.runs):
            say(f"{len(self.runs) - len(waiting)} of {len(self.runs)} runs are done")
        while waiting or self.running:
            for run in self._ended():
                self._settle(run)
            for run in list(waiting):
                if len(self.running) >= jobs:
                    break
                if self._ready(run, waiting):
                    self._start(run)
            self.progress.show(self._share_done(), self._counts())
            if self.running:
                time.sleep(0.3)
        self.progress.show(self._share_done(), self._counts(), last=True)

    def _forget_lost(self) -> None:
        """Repeat runs whose checkpoint is gone but needed by other runs.

        It may have been removed to save space, or only results were copied here.
        """
        waiting = [run for run in self.runs if run.id not in self.finished]
        while waiting:
            for id in waiting.pop().needs:
                if id in self.finished and self._lost(self.by_id[id]):
                    need = self.by_id[id]
                    say(
                        f"{need.name} runs again: its checkpoint is needed, but missing"
                    )
                    self.again.add(id)
                    del self.finished[id]
                    waiting.append(need)

    def _lost(self, run: Run) -> bool:
        folder = folder_of(self.out, run)
        there = checkpoint_of(self.out, run).exists()
        if not (folder / RESULT).exists():
            # Without a task it was copied here, and is whole; else it was begun again.
            return not there or (folder / TASK).exists()
        if not there:
            # First, so that a kill during rmtree leaves nothing that looks trained.
            (folder / TRAINED).unlink(missing_ok=True)
            shutil.rmtree(folder)
        return not there

    def _ready(self, run: Run, waiting: List[Run]) -> bool:
        """Whether a run can start now; remove one that never can."""
        broken = [other for other in self.failed if other.id in run.needs]
        if broken:
            waiting.remove(run)
            reason = f"it needs {broken[0].name}, which failed"
            log = folder_of(self.out, broken[0]) / "run.log"
            self._fail(run, {"reason": reason, "log": str(log)})
            return False
        if all(need in self.finished for need in run.needs):
            waiting.remove(run)
            return True
        return False

    def _start(self, run: Run) -> None:
        folder = folder_of(self.out, run)
        folder.mkdir(parents=True, exist_ok=True)
        task = task_of(run, self.grid, out=self.out, cpu=self.cpu)
        with whole_file(folder / TASK) as file:
            file.write(json.dumps(task, indent=1).encode())
        try:
            self.running[run.id] = self.launcher.start(folder.resolve(), self.lock)
        except LotteryError as error:  # the runs that are running continue
            self._fail(run, {"reason": str(error), "log": str(folder / "run.log")})

    def _ended(self) -> List[Run]:
        ended = [
            id
            for id, handle in self.running.items()
            if self.launcher.status(handle) is not None
        ]
        for id in ended:
            del self.running[id]
        return [self.by_id[id] for id in ended]

    def _settle(self, run: Run) -> None:
        folder = folder_of(self.out, run)
        if self._collect(run):
            result = self.finished[run.id]
            score = next((result[name] for name in MEASURES if name in result), None)
            minutes = (result["seconds"]["train"] or 0) / 60
            self.progress.say(f"done {run.name}: {score}, {minutes:.1f} min")
            return
        failure = {
            "reason": "its process ended without a message",
            "log": str(folder / "run.log"),
        }
        if (folder / FAILURE).exists():
            failure = json.loads((folder / FAILURE).read_text(encoding="utf-8"))
        if _DISK_FULL in failure["reason"]:
            raise OSError(28, _DISK_FULL, str(folder))
        self._fail(run, failure)

    def _collect(self, run: Run) -> bool:
        """Append the result that a run has left, if any, to the file of results."""
        path = folder_of(self.out, run) / RESULT
        if not path.exists():
            return False
        result = json.loads(path.read_text(encoding="utf-8"))
        append_result(self.out, result)
        self.finished[run.id] = result
        return True

    def _fail(self, run: Run, failure: Dict[str, str]) -> None:
        self.failed.append(run)
        base = {"id": run.id, "status": "failed", "variant": run.variant}
        if run.id not in self.again:  # its earlier result is still valid
            append_result(self.out, {**base, "seed": run.seed, **failure})
        self.progress.say(
            f"FAILED {run.name}: {failure['reason']}; see {failure['log']}"
        )

    def _share_done(self) -> float:
        """Return how many runs are done; a running one counts in part."""
        done = len(self.failed) + sum(run.id in self.finished for run in self.runs)
        return done + sum(
            share_trained(folder_of(self.out, run) / "train.log", run)
            for run in self.runs
            if run.id in self.running
        )

    def _counts(self) -> str:
        done = sum(run.id in self.finished for run in self.runs)
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{done}/{len(self.runs)} runs{failed}, {len(self.running)} running"


def _plan(grid: Grid) -> Dict[str, Any]:
    """Return what the figures need to know about a grid."""
    return {
        "name": grid.name,
        "title": grid.title,
        "figure": grid.figure,
        "corpus": grid.corpus,
        "variants": [
            {"name": v.name, "label": v.label, "table1": v.table1}
            for v in grid.variants
        ],
        "runs": [
            {
                "id": run.id,
                "variant": run.variant,
                "seed": run.seed,
                "keep": _keep(run),
            }
            for run in grid.runs
        ],
    }


def _keep(run: Run) -> Optional[float]:
    """Return the fraction that a masked model keeps, None for a dense one."""
    arch = str(run.train["arch"])
    if not is_masked(arch) or (
        "reservoir" in arch and "reservoir-mask" not in run.train
    ):
        return None
    return float(run.train.get("mask-keep", 0.5))


@contextmanager
def _locked(out: Path) -> Iterator[int]:
    """Lock a folder for one sweep; wait a moment for the runs of a killed one."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a") as file:
        for attempt in range(10):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 9:
                    raise LotteryError(
                        f"{out} is in use by another sweep; wait for its end, or give"
                        " another folder with --out"
                    ) from None
                time.sleep(0.3)
        yield file.fileno()


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Turn an error of writing, such as a full disk, into a message."""
    try:
        yield
    except OSError as error:
        raise LotteryError(
            f"cannot write in {out}: {error.strerror}; fix that and run the sweep"
            " again: finished runs are kept"
        ) from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the sweep and its runs as ctrl-C does."""

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before: Any = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
