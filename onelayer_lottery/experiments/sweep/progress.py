"""The progress of a sweep: a bar with the time left, from the logs of its runs."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from onelayer_lottery.experiments.sweep.runs import Run


class Progress:
    """A progress bar with the time left; without a terminal, a line a minute."""

    def __init__(self, total: int, done: float):
        self.total, self.before = total, done
        self.started = time.time()
        self.shown = 0.0
        self.terminal = sys.stderr.isatty()

    def show(self, done: float, counts: str, *, last: bool = False) -> None:
        pause = 1 if self.terminal else 60
        if not last and time.time() - self.shown < pause:
            return
        self.shown = time.time()
        share = done / self.total
        bar = "#" * round(20 * share)
        spent = time.time() - self.started
        line = f"[{bar:-<20}] {share:4.0%} {counts}, {_duration(spent)}"
        if not last:
            line += f", ETA {self._left(done, spent)}"
        if self.terminal:
            print(
                f"\r{line:<79}", end="\n" if last else "", file=sys.stderr, flush=True
            )
        else:
            say(line)

    def say(self, line: str) -> None:
        say(f"\r{line:<79}" if self.terminal else line)

    def _left(self, done: float, spent: float) -> str:
        won = done - self.before
        if won < 0.02:
            return "?"
        return _duration(spent * (self.total - done) / won)


def share_trained(log: Path, run: Run) -> float:
    """Return the part of a run that is done, from the updates or epochs in its log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            tail = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return 0.0
    shares = [0.0]
    for flag, name in (("max-update", '"num_updates": "'), ("max-epoch", '"update": ')):
        values = re.findall(rf"{name}([\d.]+)", tail)
        if values and float(run.train.get(flag, 0)) > 0:
            shares.append(float(values[-1]) / float(run.train[flag]))
    return min(0.95, 0.95 * max(shares))


def say(line: str) -> None:
    """Print a line of the log of a sweep."""
    print(line, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
