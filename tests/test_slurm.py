"""Sweeps on a real SLURM of one machine, started for these tests on loopback."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import ROOT
from warm import warm

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"no {', '.join(MISSING)} here: apt-get install slurm-wlm munge",
    ),
]

CONFIGURATION = """
ClusterName=test
SlurmctldHost=HOST(127.0.0.1)
SlurmUser=USER
SlurmdUser=USER
SlurmctldPort=PORT1
SlurmdPort=PORT2
AuthType=auth/munge
AuthInfo=socket=FOLDER/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
StateSaveLocation=FOLDER/state
SlurmdSpoolDir=FOLDER/spool
SlurmctldPidFile=FOLDER/slurmctld.pid
SlurmdPidFile=FOLDER/slurmd.pid
NodeName=HOST NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A controller and a node of two CPUs, which keeps no accounts."""

    def __init__(self, folder):
        self.folder, self.host = folder, socket.gethostname().split(".")[0]
        ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        text = CONFIGURATION.replace("HOST", self.host).replace("FOLDER", str(folder))
        text = text.replace("USER", getpass.getuser())
        for number, port in enumerate(ports, 1):
            text = text.replace(f"PORT{number}", str(port.getsockname()[1]))
            port.close()
        (folder / "slurm.conf").write_text(text)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "key").write_bytes(os.urandom(64))
        (folder / "key").chmod(0o600)
        self.environment = {
            **os.environ,
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": str(ROOT),
        }
        munge = [f"--{name}-file={folder / name}" for name in ("key", "log", "seed")]
        munge += [f"--pid-file={folder / 'munged.pid'}", "--force", "--foreground"]
        munge += [f"--socket={folder / 'munge.socket'}"]
        self.daemons = [
            self._start("munged", *munge),
            self._start("slurmctld", "-D"),
            self._start("slurmd", "-D"),
        ]
        self.wait_for("idle", "sinfo", "--noheader", "--format", "%T")

    def _start(self, *words):
        with (self.folder / f"{words[0]}.log").open("wb") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env=self.environment)

    def ask(self, *words) -> str:
        done = subprocess.run(
            words, capture_output=True, encoding="utf-8", env=self.environment
        )
        return done.stdout.strip()

    def wait_for(self, answer, *words):
        deadline = time.monotonic() + 120
        while self.ask(*words) != answer:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def logs(self):
        return "".join(path.read_text() for path in self.folder.glob("*.log"))[-4000:]

    def jobs(self, format="%A"):
        return self.ask("squeue", "--noheader", "--format", format).split()

    def stop(self):
        self.ask("scancel", "--user", getpass.getuser())
        self.wait_for("", "squeue", "--noheader")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


@pytest.fixture
def slurm(cluster):
    """The cluster, when the jobs of an earlier test have left its queue."""
    cluster.wait_for("", "squeue", "--noheader")
    return cluster


GRID = """
data: DATA
base:
  arch: transformer_onelayer_random_tiny
  encoder-embed-dim: 16
  decoder-embed-dim: 16
  encoder-layers: 1
  decoder-layers: 1
  optimizer: adam
  lr: 2e-3
  criterion: label_smoothed_cross_entropy
  max-tokens: 2400
  max-update: 3
  num-workers: 0
generate: no
variants: VARIANTS
"""


class Sweep:
    """The command for one grid, which can be called again."""

    def __init__(self, slurm, fairseq, folder, variants):
        self.slurm, self.out = slurm, folder / "runs"
        text = GRID.replace("DATA", str(fairseq.folder / "data-bin"))
        (folder / "grid.yaml").write_text(text.replace("VARIANTS", variants))
        self.words = ["-m", "onelayer_lottery.cli", "sweep"]
        self.words += [str(folder / "grid.yaml"), "--out", str(self.out)]
        self.words += ["--launcher", "slurm"]

    def start(self, *options, python=None):
        return subprocess.Popen(
            [str(python or warm("python")), *self.words, *options],
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=self.slurm.environment,
        )

    def results(self):
        text = (self.out / "results.jsonl").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]


WITHOUT_GPU = ("--launcher-option", "gpus_per_node=0")


def ended(process):
    """What a sweep said when it had ended, and how."""
    _, said = process.communicate(timeout=600)
    assert "Traceback" not in said
    return process.returncode, said


def wait_for_jobs(slurm, count, state):
    deadline = time.monotonic() + 300
    while slurm.jobs("%T") != [state] * count:
        assert time.monotonic() < deadline, slurm.ask("squeue")
        time.sleep(0.2)
    return slurm.jobs()


def test_a_cancelled_job_fails_alone_and_is_run_when_called_again(
    slurm, fairseq, tmp_path
):
    sweep = Sweep(slurm, fairseq, tmp_path, "{a: {}, b: {mask-keep: 0.3}}")
    process = sweep.start(*WITHOUT_GPU)
    first, _ = wait_for_jobs(slurm, 2, "RUNNING")
    slurm.ask("scancel", first)
    status, said = ended(process)
    assert status == 1
    assert said.count("its process ended without a message") == 1
    assert "1 of 2 runs failed" in said
    assert ended(sweep.start(*WITHOUT_GPU))[0] == 0
    states = [result["status"] for result in sweep.results()]
    assert sorted(states) == ["failed", "finished", "finished"]
    assert {result.get("device") for result in sweep.results()} == {"cpu", None}


def test_jobs_wait_for_a_drained_node_and_run_once_though_the_sweep_is_killed(
    slurm, fairseq, tmp_path
):
    sweep = Sweep(slurm, fairseq, tmp_path, "{a: {}}")
    node = f"NodeName={slurm.host}"
    slurm.ask("scontrol", "update", node, "State=DRAIN", "Reason=test")
    killed = sweep.start(*WITHOUT_GPU)
    wait_for_jobs(slurm, 1, "PENDING")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    process = sweep.start(*WITHOUT_GPU)
    wait_for_jobs(slurm, 2, "PENDING")
    slurm.ask("scontrol", "update", node, "State=RESUME")
    assert ended(process)[0] == 0
    assert [result["status"] for result in sweep.results()] == ["finished"]
    (log,) = sweep.out.glob("a-*/train.log")
    assert log.read_text("utf-8").count("num. shared model params") == 1


def test_a_stopped_sweep_takes_its_jobs_with_it(slurm, fairseq, tmp_path):
    sweep = Sweep(slurm, fairseq, tmp_path, "{a: {}}")
    process = sweep.start(*WITHOUT_GPU, python=sys.executable)
    wait_for_jobs(slurm, 1, "RUNNING")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 130
    slurm.wait_for("", "squeue", "--noheader")


def test_a_job_that_sbatch_refuses_is_told_with_its_reason(slurm, fairseq, tmp_path):
    """The default asks for a GPU, which this cluster does not have."""
    sweep = Sweep(slurm, fairseq, tmp_path, "{a: {}}")
    status, said = ended(sweep.start())
    assert status == 1
    assert "--launcher cannot start a job: sbatch: error: " in said
    assert "gpus_per_node=0 on a cluster without GPUs" in said
    assert [result["status"] for result in sweep.results()] == ["failed"]
    assert slurm.jobs() == []
