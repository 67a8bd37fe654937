"""Measuring side by side, and saying no more than a measurement tells."""

from __future__ import annotations

import logging
import math
import os
import platform
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch

import onelayer_lottery
from onelayer_lottery.compat import fairseq_version

FEWEST_ROUNDS = 5  # with fewer, chance alone puts all of them on one side too often
TOO_NOISY = "too noisy to tell"
EQUAL = 0.05  # an interval wider than this cannot show that two things are equal


@dataclass
class Row:
    """One target, and what was measured of it in each round."""

    name: str
    what: str
    target: float
    values: List[float]  # one per round: a ratio, or seconds
    at_most: bool = True  # else at least
    unit: str = "x"
    exact: bool = False  # a count, the same in every run
    noise_aside: bool = False  # the target is to be equal
    detail: str = ""
    measured: Dict[str, List[float]] = field(default_factory=dict)

    @property
    def middle(self) -> float:
        return statistics.median(self.values)

    def verdict(self) -> str:
        """Whether the target is met: only said if the interval does not span it."""
        low, high = median_interval(self.values)
        if not self.exact:
            if self.noise_aside:
                unclear = high - low > EQUAL
            else:
                unclear = low <= self.target <= high
            if unclear or len(self.values) < FEWEST_ROUNDS:
                return TOO_NOISY
        best = low if self.noise_aside else self.middle
        return "met" if (best <= self.target) == self.at_most else "missed"

    def cells(self) -> List[str]:
        verdict = self.verdict()
        low, high = median_interval(self.values)
        sign = "<=" if self.at_most else ">="
        middle = "-" if verdict == TOO_NOISY else f"{self.middle:.3f}{self.unit}"
        spread = "exact" if self.exact else f"{low:.3f} to {high:.3f}"
        target = f"{sign} {self.target:.2f}{self.unit}"
        rounds = str(len(self.values))
        return [self.name, self.what, target, middle, spread, rounds, verdict]

    def record(self) -> Dict[str, Any]:
        """Everything, for the JSON file; without a middle if there is no verdict."""
        low, high = median_interval(self.values)
        verdict = self.verdict()
        kept = {k: v for k, v in vars(self).items() if k != "name"}
        middle = None if verdict == TOO_NOISY else self.middle
        return {"verdict": verdict, "median": middle, "interval": [low, high], **kept}


HEADS = ["row", "what", "target", "median", "95% interval", "rounds", "verdict"]


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def count_cpu_time() -> None:
    """Let ``interleave`` count CPU time, which others on a busy machine change less."""
    global _clock
    _clock = time.process_time


_clock: Callable[[], float] = time.perf_counter


def interleave(
    works: Dict[str, Callable[[], Any]], rounds: int, *, title: str, warm_up: int = 1
) -> Dict[str, List[float]]:
    """Seconds of each work in each round; every other round in reverse order."""
    for _ in range(warm_up):
        for work in works.values():
            work()
    seconds: Dict[str, List[float]] = {name: [] for name in works}
    for number in range(rounds):
        say(f"{title}: round {number + 1} of {rounds}")
        names = list(works)
        for name in reversed(names) if number % 2 else names:
            started = _clock()
            works[name]()
            seconds[name].append(_clock() - started)
    return seconds


def ratios(upper: Sequence[float], lower: Sequence[float]) -> List[float]:
    """The ratio in each round, of two works that ran in it."""
    return [a / b for a, b in zip(upper, lower)]


def median_interval(values: Sequence[float]) -> Tuple[float, float]:
    """An interval that holds the true median with 95%, whatever the distribution.

    Of fewer than six values there is none; it is then all of their range.
    """
    ordered = sorted(values)
    count, drop = len(ordered), 0
    outside = 2 / 2**count  # the chance that all are on one side of the median
    while outside + 2 * math.comb(count, drop + 1) / 2**count <= 0.05:
        drop += 1
        outside += 2 * math.comb(count, drop) / 2**count
    return ordered[drop], ordered[count - 1 - drop]


def linear_fit(x: Sequence[float], y: Sequence[float]) -> Tuple[float, float, float]:
    """Slope, offset and R^2 of a straight line through points."""
    slope, offset = np.polyfit(x, y, 1)
    rest = np.asarray(y) - (slope * np.asarray(x) + offset)
    return float(slope), float(offset), float(1 - np.var(rest) / np.var(y))


def machine() -> Dict[str, Any]:
    """What the numbers were measured on and with."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "time": "CPU" if _clock is time.process_time else "wall clock",
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fairseq": fairseq_version(),
        "onelayer_lottery": onelayer_lottery.__version__,
    }


def hush_fairseq() -> None:
    """Leave out the log of the trainer, and what torch finds outdated in it."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
