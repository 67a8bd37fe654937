"""Seconds per update of each variant of the grid, measured in alternation.

    python examples/reservoir/times.py DATA-BIN -o examples/reservoir/times.json

--grid names another grid than that of this folder.
Trainings of a sweep share a machine with each other and with whatever else runs, so
their wall-clock times cannot be compared. Here every variant makes an update on the
same batch of the training data in each round, in an order that is reversed every other
round, on one thread. What is timed is the thread's CPU time: on a machine that does
nothing else it is the wall-clock time, on a busy one it leaves out the waiting. The
ratio to the first variant is taken within each round, for batches differ in size; the
seconds of a variant are its median ratio times the median seconds of the first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Dict, List

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from fairseq.trainer import Trainer

import onelayer_lottery  # noqa: F401  registers the architectures
from onelayer_lottery.experiments.sweep.grid import read_grid
from onelayer_lottery.experiments.sweep.runs import Run, words_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from measure import hush_fairseq, machine, median_interval, ratios, say

HERE = Path(__file__).parent
WARM_UP = 3  # rounds that do not count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("times.json"))
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--grid", type=Path, default=HERE / "grid.yaml")
    words = parser.parse_args()
    torch.set_num_threads(1)
    hush_fairseq()
    grid = read_grid(words.grid, data=words.data)
    runs = {run.variant: run for run in grid.runs}
    trainers = {v.name: build_trainer(runs[v.name], words.data) for v in grid.variants}
    batches = training_batches(next(iter(trainers.values())))
    works = {name: Stepper(trainer, batches) for name, trainer in trainers.items()}
    for number in range(-WARM_UP, words.rounds):
        say(f"round {number + 1} of {words.rounds}")
        for name in reversed(list(works)) if number % 2 else works:
            works[name].step(keep=number >= 0)
    first = next(iter(works.values())).cpu
    ratio = {name: ratios(work.cpu, first) for name, work in works.items()}
    found = {
        "seconds": {n: median(first) * median(times) for n, times in ratio.items()},
        "ratio": {name: median(times) for name, times in ratio.items()},
        "interval": {name: median_interval(times) for name, times in ratio.items()},
        "rounds": words.rounds,
        "machine": machine(),
    }
    words.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, seconds in found["seconds"].items():
        low, high = found["interval"][name]
        print(
            f"{name:<12} {seconds:.4f} s per update, {found['ratio'][name]:.3f} of the"
            f" first ({low:.3f} to {high:.3f})"
        )


class Stepper:
    """Makes updates, each on the next of the batches, and times them."""

    def __init__(self, trainer: Trainer, batches: List[Any]):
        self.trainer, self.batches, self.number = trainer, batches, 0
        self.cpu: List[float] = []

    def step(self, *, keep: bool) -> None:
        started = time.process_time()
        self.trainer.train_step([self.batches[self.number % len(self.batches)]])
        self.number += 1
        if keep:
            self.cpu.append(time.process_time() - started)


def build_trainer(run: Run, data: Path) -> Trainer:
    flags: Dict[str, Any] = {**run.train, "seed": "1", "cpu": True}
    flags["required-batch-size-multiple"] = "1"
    parser = options.get_training_parser()
    with warnings.catch_warnings():  # fairseq's way of calling hydra is deprecated
        warnings.simplefilter("ignore")
        config = convert_namespace_to_omegaconf(
            options.parse_args_and_arch(parser, [str(data), *words_of(flags)])
        )
    task = setup_task(config.task)
    torch.manual_seed(1)
    model = task.build_model(config.model)
    trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
    trainer.begin_epoch(1)
    return trainer


def training_batches(trainer: Trainer, count: int = 20) -> List[Any]:
    """Some batches of the training data, as a training gets them."""
    batches = iter(trainer.get_train_iterator(1).next_epoch_itr(shuffle=True))
    return list(islice(batches, count))  # a small corpus has fewer


if __name__ == "__main__":
    main()
