"""Trainings that start at once, to be killed: forks of a process that has imported
fairseq and read the flags. What is killed is the process that trains."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, List
from unittest import mock

import torch
from conftest import USER_DIR, Fairseq
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq_cli import train as fairseq_train

from onelayer_lottery.checkpoint.reading import load_checkpoint

with contextlib.suppress(ImportError):  # of torch 2, by the first step of an optimizer
    import torch._dynamo

_FORKS = multiprocessing.get_context("forkserver")


def forks() -> multiprocessing.context.ForkServerContext:
    """What starts processes that have imported fairseq."""
    _FORKS.set_forkserver_preload([__name__])
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with mock.patch.dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return _FORKS


class Training:
    """One training, started as often as it takes."""

    def __init__(self, folder: Path, words: List[str], log: Path):
        self.log = log
        self._pipe, theirs = _FORKS.Pipe()
        arguments = (folder, words, log, theirs)
        self._parent = _FORKS.Process(target=_serve, args=arguments, daemon=True)
        self._parent.start()
        theirs.close()

    def start(self) -> None:
        self._pipe.send("start")
        self.pid = self._pipe.recv()

    @property
    def runs(self) -> bool:
        return not self._pipe.poll()

    def kill(self) -> bool:
        """Whether it had not ended by itself."""
        os.kill(self.pid, signal.SIGKILL)  # the id is its own until it is waited for
        return self.wait() == -signal.SIGKILL

    def finish(self) -> None:
        self.start()
        assert self.wait() == 0, self.log.read_text("utf-8")[-4000:]

    def wait(self) -> int:
        self._pipe.recv()
        self._pipe.send("wait")
        return self._pipe.recv()


class ForkedFairseq(Fairseq):
    """Prepares trainings in the folder of another, and starts none."""

    def __init__(self, fairseq: Fairseq):
        self.folder = fairseq.folder
        forks()

    def run(self, command: str, *arguments: object, log: Path) -> Training:
        assert command == "fairseq-train"
        words = [str(word) for word in (*arguments, "--user-dir", USER_DIR)]
        return Training(self.folder, words, log)


def _assert_same(ours: Any, theirs: Any, where: str) -> None:
    """The same values of the same types, tensors to the bit."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs), where
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key in ours:
            _assert_same(ours[key], theirs[key], f"{where}/{key}")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for number, (our, their) in enumerate(zip(ours, theirs)):
            _assert_same(our, their, f"{where}/{number}")
    else:
        assert ours == theirs, where


def assert_same_training(ours: Path, theirs: Path) -> None:
    """All but times, averages for the log, and how often it was resumed."""
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        states = [load_checkpoint(folder / name) for folder in (ours, theirs)]
        for state in states:
            state["optimizer_history"] = state["optimizer_history"][-1:]
            for key in ("metrics", "previous_training_time"):
                del state["extra_state"][key]
        _assert_same(*states, where=name)


def _serve(folder: Path, words: List[str], log: Path, pipe) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = ["fairseq-train", *words]
    args = options.parse_args_and_arch(options.get_training_parser())
    cfg = convert_namespace_to_omegaconf(args)
    while pipe.recv():
        child = os.fork()
        if not child:
            _train(cfg)
        pipe.send(child)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        pipe.send("ended")
        pipe.recv()
        status = os.waitpid(child, 0)[1]
        signalled = os.WIFSIGNALED(status)
        pipe.send(-os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status))


def _train(cfg) -> None:
    status = 1
    try:
        distributed_utils.call_main(cfg, fairseq_train.main)
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
