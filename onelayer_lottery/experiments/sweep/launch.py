"""Where the process of a run is started: on this machine, or through submitit."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.sweep.orphans import dying_with_parent


class Processes:
    """Starts each run as a process here, with its own share of the GPUs."""

    def __init__(self, devices: List[str]):
        """``devices`` has a value of CUDA_VISIBLE_DEVICES per job; empty on a CPU."""
        self.devices = devices
        self.used: Dict[int, str] = {}  # by process id

    def start(self, folder: Path, lock: int) -> subprocess.Popen:
        environment = dict(os.environ)
        free = [d for d in self.devices if d not in self.used.values()]
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = free[0]
        else:
            environment["OMP_NUM_THREADS"] = "1"
        with (folder / "run.log").open("ab") as log:
            process = subprocess.Popen(
                run_command(folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # ctrl-C is for the sweep alone
                pass_fds=[lock],  # the folder stays locked while a run is alive
                preexec_fn=dying_with_parent(),
            )
        if self.devices:
            self.used[process.pid] = free[0]
        return process

    def status(self, process: subprocess.Popen) -> Optional[int]:
        status = process.poll()
        if status is not None:
            self.used.pop(process.pid, None)
        return status

    def stop(self, processes: List[subprocess.Popen]) -> None:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.time() + 10
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.time()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Submitit:
    """Starts each run as a job of submitit: on SLURM, or on its local executor."""

    def __init__(self, cluster: str, out: Path, *, gpus: int, options: Dict[str, Any]):
        try:
            import submitit
        except ModuleNotFoundError:
            raise LotteryError(
                f"--launcher {cluster} needs the library submitit: pip install submitit"
            ) from None
        self.queue = _Queue() if cluster == "slurm" else None
        try:
            self.executor = submitit.AutoExecutor(out / "jobs", cluster=cluster)
            defaults = {"timeout_min": 3 * 24 * 60, "gpus_per_node": gpus}
            self.executor.update_parameters(
                name="onelayer-lottery", **{**defaults, **options}
            )
        except (RuntimeError, NameError, TypeError, AssertionError) as error:
            raise LotteryError(f"--launcher {cluster}: {error}") from None

    def start(self, folder: Path, lock: int) -> Any:
        try:
            return self.executor.submit(Job(), str(folder))
        except Exception as error:  # of submitit, or of sbatch behind it
            reason = str(error).strip().split("\n")[-1]
            raise LotteryError(
                f"--launcher cannot start a job: {reason}; see --launcher-option, such"
                " as gpus_per_node=0 on a cluster without GPUs"
            ) from None

    def status(self, job: Any) -> Optional[int]:
        if self.queue and not _has_result(job):
            return 1 if self.queue.has_lost(job.job_id) else None
        if not job.done():
            return None
        try:
            return job.result()
        except Exception:  # whatever ended the job, its log tells
            return 1

    def stop(self, jobs: List[Any]) -> None:
        for job in jobs:
            job.cancel(check=False)


class _Queue:
    """SLURM's queue of this user's jobs, polled now and then.

    submitit learns only from ``sacct`` that a job was cancelled. On a cluster without
    accounting it would wait forever, and elsewhere it polls less and less often.
    """

    PAUSE = 5.0  # seconds between two polls
    PATIENCE = 15.0  # seconds to wait for the result of a job that left the queue

    def __init__(self) -> None:
        self.asked = -math.inf
        self.jobs: Optional[Set[str]] = None
        self.missing: Dict[str, float] = {}  # since when, by id

    def has_lost(self, job: str) -> bool:
        """Whether a job has left the queue without a result."""
        now = time.monotonic()
        if now - self.asked > self.PAUSE:
            self.asked, self.jobs = now, _queued_jobs()
        if self.jobs is None or job in self.jobs:
            self.missing.pop(job, None)
            return False
        return now - self.missing.setdefault(job, now) > self.PATIENCE


def _queued_jobs() -> Optional[Set[str]]:
    """Return the ids of this user's jobs, or None if SLURM does not answer."""
    command = ["squeue", "--me", "--noheader", "--format", "%A"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(done.stdout.decode().split())


def _has_result(job: Any) -> bool:
    folder = job.paths.folder
    folder.chmod(folder.stat().st_mode)  # lets NFS look again
    return job.paths.result_pickle.exists()


class Job:
    """What submitit runs: the process of the run, again after a preemption."""

    def __call__(self, folder: str) -> int:
        environment = dict(os.environ)
        if not environment.get("CUDA_VISIBLE_DEVICES"):
            environment["OMP_NUM_THREADS"] = "1"
        with (Path(folder) / "run.log").open("ab") as log:
            return subprocess.run(
                run_command(Path(folder)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=dying_with_parent(),
                check=False,
            ).returncode

    def checkpoint(self, folder: str) -> Any:
        """Called by submitit before a job is preempted or out of time."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, folder)


def run_command(folder: Path) -> List[str]:
    return [sys.executable, "-m", "onelayer_lottery.experiments.sweep.run", str(folder)]


def visible_gpus() -> List[str]:
    """Return the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(n) for n in range(count)]
