"""What goes wrong around a command: full disks, killed parents, refusing clusters."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from onelayer_lottery.checkpoint.reading import load_checkpoint, save_checkpoint
from onelayer_lottery.checkpoint.torn import LAST, UNREADABLE, mend_last
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.results import read_results
from onelayer_lottery.experiments.sweep.grid import read_grid
from onelayer_lottery.experiments.sweep.launch import Submitit
from onelayer_lottery.experiments.sweep.run import RESULT, TASK
from onelayer_lottery.experiments.sweep.schedule import sweep


@pytest.fixture
def small_files():
    """No file may grow beyond 64 KiB, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_without_room_is_named(small_files, tmp_path):
    path = tmp_path / "model.pt"
    with pytest.raises(LotteryError) as error:
        save_checkpoint({"model": {"w": torch.zeros(1 << 20)}}, path, force=False)
    assert str(error.value) == f"cannot write {path}: File too large"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children")
@pytest.mark.parametrize("pause", [0.0, 0.05, 0.3])
def test_a_child_ends_with_its_parent_however_early(pause, tmp_path):
    """Killed right after the start too: the child has not run its program yet."""
    script = f"""
import subprocess, sys, time
from onelayer_lottery.experiments.sweep.orphans import dying_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         preexec_fn=dying_with_parent())
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script])
    pid = tmp_path / "pid"
    deadline = time.time() + 60
    while not (pid.exists() and pid.read_text()) and time.time() < deadline:
        time.sleep(0.01)
    time.sleep(pause)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    child = int(pid.read_text())
    while time.time() < deadline and _alive(child):
        time.sleep(0.02)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_cluster_that_refuses_a_job_is_told_in_a_sentence(tmp_path):
    launcher = Submitit("local", tmp_path, gpus=0, options={})

    def refuse(*arguments):
        raise RuntimeError("sbatch: error: Invalid generic resource (gres)")

    launcher.executor.submit = refuse
    with pytest.raises(LotteryError) as error:
        launcher.start(tmp_path, 0)
    assert str(error.value) == (
        "--launcher cannot start a job: sbatch: error: Invalid generic resource (gres);"
        " see --launcher-option, such as gpus_per_node=0 on a cluster without GPUs"
    )


class FullQueue:
    """Takes one job, which ends with a result, and refuses any further one."""

    def __init__(self):
        self.folder, self.asked, self.stopped = None, 0, []

    def start(self, folder, lock):
        if self.folder:
            raise LotteryError("--launcher cannot start a job: the queue is full")
        self.folder = folder
        return folder

    def status(self, folder):
        self.asked += 1
        if self.asked < 3:
            return None
        task = json.loads((folder / TASK).read_text("utf-8"))
        result = {name: task[name] for name in ("id", "variant", "seed", "config")}
        result.update(status="finished", seconds={"train": 1})
        (folder / RESULT).write_text(json.dumps(result), "utf-8")
        return 0

    def stop(self, jobs):
        self.stopped += jobs


def test_jobs_that_run_continue_when_a_cluster_refuses_another(fairseq, tmp_path):
    data = fairseq.folder / "data-bin"
    (tmp_path / "grid.yaml").write_text(
        "base: {arch: transformer, max-update: 1, max-tokens: 100, optimizer: adam}\n"
        "variants: {a: {}, b: {dropout: 0}, c: {dropout: 0.5}}\n"
    )
    grid, queue = read_grid(tmp_path / "grid.yaml", data=data), FullQueue()
    assert len(sweep(grid, tmp_path / "runs", launcher=queue, jobs=2, cpu=True)) == 2
    results = read_results(tmp_path / "runs").values()
    statuses = {result["variant"]: result["status"] for result in results}
    assert statuses == {"a": "finished", "b": "failed", "c": "failed"}
    assert queue.stopped == []


def resumed(fairseq, trained, folder, *flags):
    shutil.copytree(trained, folder)
    flags = ("--no-epoch-checkpoints", *flags)
    return folder, lambda: fairseq.train("data-bin", folder, *flags)


def test_a_finished_training_is_not_trained_further(fairseq, trained, tmp_path):
    folder, train = resumed(fairseq, trained, tmp_path / "run", "--max-update", 2)
    before = (folder / LAST).read_bytes()
    assert "the training is finished: " in train().log
    assert (folder / LAST).read_bytes() == before


def test_a_torn_last_checkpoint_is_replaced_by_the_newest_whole_one(
    fairseq, trained, tmp_path
):
    folder, _ = resumed(fairseq, trained, tmp_path / "run", "--max-update", 1000)
    whole = (folder / LAST).read_bytes()
    (folder / LAST).write_bytes(whole[: len(whole) // 2])
    newest = max(folder.glob("checkpoint[0-9]*.pt"), key=lambda p: p.stat().st_mtime)
    os.utime(newest)
    best = newest.read_bytes()
    mend_last(folder)
    assert (folder / LAST).read_bytes() == best
    assert (folder / UNREADABLE).read_bytes() == whole[: len(whole) // 2]
    mend_last(folder)  # now it is whole
    assert (folder / LAST).read_bytes() == best


def test_a_killed_training_goes_on_from_the_newest_whole_checkpoint(
    fairseq, trained, tmp_path
):
    updates = load_checkpoint(trained / LAST)["optimizer_history"][-1]["num_updates"]
    flags = ("--max-epoch", 100, "--max-update", updates + 2)
    folder, train = resumed(fairseq, trained, tmp_path / "run", *flags)
    whole = (folder / LAST).read_bytes()
    (folder / LAST).write_bytes(whole[: len(whole) // 2])
    log = train().log
    assert "checkpoint_last.pt cannot be read: a training was killed while" in log
    assert "Traceback" not in log
    state = load_checkpoint(folder / LAST)
    assert state["optimizer_history"][-1]["num_updates"] == updates + 2
