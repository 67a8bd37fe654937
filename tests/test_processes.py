"""A training goes on to the bit on another number of processes, also in epoch 2."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time

import pytest
import torch
from conftest import USER_DIR, Fairseq
from forks import ForkedFairseq
from warm import real, warm

from onelayer_lottery.checkpoint.reading import load_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Without dropout, which would be drawn in another order; an epoch has 8 batches.
FLAGS = (
    *("--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 24, "--encoder-layers", 1),
    *("--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 24, "--decoder-layers", 1),
    *("--dropout", 0, "--max-tokens", 2400, "--max-update", 9),
    *("--save-interval-updates", 5),
)

TOGETHER = (
    *("--distributed-world-size", 2, "--distributed-no-spawn"),
    *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
)


EACH = ("--load-checkpoint-on-all-dp-ranks",)


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def trainings(fairseq, tmp_path_factory):
    """On one process and on two that share the work, and how far they get."""
    folder = tmp_path_factory.mktemp("processes")
    together = (*TOGETHER, "--distributed-init-method", f"tcp://127.0.0.1:{port()}")
    forked = ForkedFairseq(fairseq)

    def train(name, *flags):
        log = folder / f"{name}.log"
        return forked.train("data-bin", folder / "run", *FLAGS, *flags, log=log)

    ways = {
        1: [train("one", "--update-freq", 2)],
        2: [train(f"rank{n}", *together, "--distributed-rank", n) for n in range(2)],
    }
    for count, ranks in ways.items():
        run(ranks)
        (folder / "run").rename(folder / f"through{count}")
    ways["2, each reads"] = [
        train(f"each{n}", *together, "--distributed-rank", n, *EACH) for n in range(2)
    ]
    return folder, ways


def run(ranks):
    for rank in ranks:
        rank.start()
    for rank in ranks:
        assert rank.wait() == 0, rank.log.read_text("utf-8")[-4000:]


def assert_same_updates(ours, theirs):
    states = [load_checkpoint(path) for path in (ours, theirs)]
    models = [state["model"] for state in states]
    moments = [state["last_optimizer_state"]["state"] for state in states]
    assert len(moments[0]) == len(moments[1]) > 10
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name]), name
    for key, values in moments[0].items():
        assert torch.equal(values["exp_avg"], moments[1][key]["exp_avg"])


LAST = "checkpoint_last.pt"


def test_two_processes_train_as_one_with_update_freq_2(trainings):
    folder, _ = trainings
    assert_same_updates(folder / "through1" / LAST, folder / "through2" / LAST)


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 2)])
def test_a_training_goes_on_with_other_processes(trainings, before, now):
    """From the middle of epoch 2, as a training that was not stopped."""
    folder, ways = trainings
    (folder / "run").mkdir()
    shutil.copy(
        folder / f"through{before}" / "checkpoint_2_5.pt", folder / "run" / LAST
    )
    ways[now][0].log.write_text("")
    run(ways[now])
    assert_same_updates(folder / "run" / LAST, folder / "through1" / LAST)
    shutil.rmtree(folder / "run")
    moved = f"continuing after 2 batches of epoch 2, on {now} processes instead of"
    assert (moved in ways[now][0].log.read_text("utf-8")) == (before != now)


@pytest.mark.parametrize("way", [2, "2, each reads"])
def test_two_processes_go_on_from_a_torn_last_checkpoint(trainings, way):
    """The first replaces it, and the other waits for that."""
    folder, ways = trainings
    (folder / "run").mkdir()
    whole = folder / "through2" / "checkpoint_2_5.pt"
    shutil.copy(whole, folder / "run")
    (folder / "run" / LAST).write_bytes(whole.read_bytes()[:-1000])
    run(ways[way])
    assert_same_updates(folder / "run" / LAST, folder / "through1" / LAST)
    shutil.rmtree(folder / "run")


class Torchrun(Fairseq):
    """Starts each training as two processes under torchrun."""

    def __init__(self, fairseq):
        self.folder = fairseq.folder

    def run(self, command, *arguments, log):
        words = [warm(command), *arguments, "--user-dir", USER_DIR]
        script = log.with_suffix(".sh")
        script.write_text(
            f"echo $$ > {shlex.quote(str(log))}.$RANK\n"
            f"exec {shlex.join(map(str, words))} --distributed-rank $RANK\n"
        )
        torchrun = [real("torchrun"), "--nproc_per_node", 2, "--no-python"]
        torchrun += ["--master_addr", "127.0.0.1", "--master_port", port()]
        with log.open("wb") as file:
            return subprocess.Popen(
                [*map(str, torchrun), "sh", str(script)],
                cwd=self.folder,
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            )


@pytest.mark.parametrize("killed", ["torchrun", "rank 1"])
def test_a_training_of_torchrun_goes_on_after_a_kill(
    trainings, fairseq, tmp_path, killed
):
    """By SIGTERM to all, as a cluster stops a job, or by SIGKILL to one of two."""
    through, _ = trainings
    folder, log = tmp_path / "run", tmp_path / "log"

    def start():
        environment = ("--distributed-init-method", "env://")
        flags = (*FLAGS, *TOGETHER, *environment)
        return Torchrun(fairseq).train("data-bin", folder, *flags, log=log)

    for _ in range(5):  # it may end before it is killed
        process = start()
        while process.poll() is None and not (folder / "checkpoint_2_5.pt").exists():
            time.sleep(0.005)
        if killed == "torchrun":
            process.terminate()
        else:
            os.kill(int(log.with_suffix(".1").read_text()), signal.SIGKILL)
        if process.wait() and not (folder / "checkpoint3.pt").exists():
            break
        shutil.rmtree(folder)
    assert start().wait() == 0, log.read_text("utf-8")[-4000:]
    loaded = r"Loaded checkpoint \S*checkpoint_last.pt \(epoch [23] @ [458] updates\)"
    assert re.search(loaded, log.read_text("utf-8"))
    assert_same_updates(folder / LAST, through / "through1" / LAST)
