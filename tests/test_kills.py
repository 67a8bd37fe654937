"""Trainings and sweeps that are killed, again and again, lose nothing.

KILLS is how often each is killed, SEED draws the moments: make chaos kills more often.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
import zipfile

import pytest
from conftest import ROOT
from forks import ForkedFairseq, assert_same_training
from warm import warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("KILLS", 4))
SEED = int(os.environ.get("SEED", 1))

SMALL = (
    *("--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 24, "--encoder-layers", 1),
    *("--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 24, "--decoder-layers", 1),
)
# Three epochs and a part, with checkpoints in the middle and at the end of each.
LONG = ("--max-tokens", 2400, "--save-interval-updates", 3)
TRAININGS = {
    "plain": ("--max-update", 24),
    "annealed": (
        *("--max-update", 24, "--mask-anneal", 0.8, "--mask-train", "norm,bias"),
    ),
    "moving-average": (
        *("--max-update", 24, "--store-ema", "--ema-decay", 0.9, "--ema-fp32"),
    ),
    "update-freq": ("--max-update", 13, "--update-freq", 2),
}


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_training_that_is_killed_again_and_again_ends_as_if_it_was_not(
    kind, fairseq, tmp_path
):
    """To the bit: scores, optimizer, moving average, schedule and place in the data."""
    folder, through = tmp_path / "run", tmp_path / "through"
    training = ForkedFairseq(fairseq).train(
        *("data-bin", folder, *SMALL, *LONG, *TRAININGS[kind]), log=tmp_path / "log"
    )
    started = time.monotonic()
    training.finish()
    span = time.monotonic() - started
    folder.rename(through)
    random_moments = random.Random(f"{SEED} {kind}")
    kills = torn = finished = 0
    while kills < KILLS:
        before = unfinished(folder)
        training.start()
        if kills % 2:
            wait_for_writing(training, folder, before, random_moments)
        else:
            time.sleep(random_moments.uniform(0, 0.6 * span))
        if training.kill():
            kills += 1
            torn += bool(unfinished(folder) - before)
        else:
            finished += 1
            assert_same_training(folder, through)
            shutil.rmtree(folder)
    training.finish()
    assert_same_training(folder, through)
    print(f"{kind}: {kills} kills, {torn} of them within the writing of a checkpoint,")
    print(f"in {finished + 1} trainings, all as if they had not been killed")


def wait_for_writing(training, folder, before, random_moments):
    """Wait for one of the next checkpoints, and then for a moment."""
    old = {path for path, _ in before}
    seen, writes = set(), random_moments.randint(1, 3)
    while training.runs and len(seen) < writes:
        seen |= set(folder.glob("*.tmp")) - old
        time.sleep(0.0005)
    time.sleep(random_moments.uniform(0, 0.02))


def unfinished(folder):
    """Checkpoints that a kill has left unfinished, with the time of their writing."""
    files = [path for path in folder.glob("*.pt") if not zipfile.is_zipfile(path)]
    files += folder.glob("*.tmp")
    return {(path, path.stat().st_mtime_ns) for path in files}


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
  max-update: 12
  save-interval-updates: 3
  num-workers: 0
generate: {beam: 2, max-len-b: 12, max-tokens: 2000}
variants:
  first: {arch: transformer, max-update: 7}  # in epoch 1, where fairseq resumes
  second: {encoder-embed-path: "${first}", decoder-embed-path: "${first}"}
"""
MEASURED = ("variant", "status", "bleu", "curve", "weights", "bytes", "signature")


def test_a_sweep_that_is_killed_again_and_again_ends_as_if_it_was_not(
    fairseq, tmp_path
):
    """The same scores and curves, each run once, and no process is left behind."""
    grid = tmp_path / "grid.yaml"
    grid.write_text(GRID.replace("DATA", str(fairseq.folder / "data-bin")))

    def start(out):
        words = [warm("python"), "-m", "onelayer_lottery.cli", "sweep", grid]
        return subprocess.Popen(
            [*map(str, words), "--out", str(out)],
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def finish(out):
        process = start(out)
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
        return measured(out)

    started = time.monotonic()
    through = finish(tmp_path / "through")
    span = time.monotonic() - started
    assert len(through) == 2
    random_moments = random.Random(f"{SEED} sweep")
    kills = finished = 0
    while kills < KILLS:
        out = tmp_path / f"run{finished}"
        process = start(out)
        time.sleep(random_moments.uniform(0, 0.6 * span))
        process.kill()
        process.communicate()
        if process.returncode == 0:
            assert measured(out) == through
            finished += 1
        else:
            kills += 1
    assert finish(tmp_path / f"run{finished}") == through
    print(f"sweep: {kills} kills in {finished + 1} sweeps, all as if never killed")


def measured(out):
    """What was measured, of every line of a sweep's results."""
    lines = (out / "results.jsonl").read_text("utf-8").splitlines()
    return [[json.loads(line)[name] for name in MEASURED] for line in lines]
