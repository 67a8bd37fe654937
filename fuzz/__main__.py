"""Fuzz the commands of onelayer-lottery; exit 1 if anything was found."""

from __future__ import annotations

import argparse
import collections
import gc
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Callable, Counter, Dict, Iterable, Iterator, List, NamedTuple, Tuple

import torch

from fuzz.cases import COMMANDS, Case, make_case
from fuzz.child import FINDINGS as FOUND
from fuzz.child import GOOD, INPUTS, Child, Outcome, Work
from fuzz.corpus import make_corpus
from fuzz.findings import FINDINGS, REGRESSIONS, finding_name, read_cases, save_finding
from fuzz.warm_up import warm_up
from onelayer_lottery.cli import main as run_command

_PROGRESS_SECONDS = 5
_CHUNK = 50  # cases of one child


class Ended(NamedTuple):
    number: int
    name: str  # of the command
    outcome: Outcome


def main() -> int:
    options = _options()
    logging.disable(logging.INFO)
    warnings.filterwarnings("ignore")
    os.environ["LC_ALL"] = "C"  # or argparse looks for its translations in every case
    torch.set_num_threads(1)  # a fork copies one thread only
    corpus = make_corpus()
    warm_up(corpus)
    if options.replay:
        return _replay(list(read_cases(options.replay)), jobs=options.jobs)

    def case_of(number: int) -> Case:
        return make_case(corpus, options.seed, number)

    if options.only is not None:
        return _show(case_of, options)
    numbers = range(options.start, options.start + options.cases)
    tally = Tally(options.cases)
    try:
        for ended in run_cases(case_of, numbers, jobs=options.jobs):
            if tally.add(ended):
                path = save_finding(
                    case_of(ended.number),
                    ended.outcome,
                    seed=options.seed,
                    number=ended.number,
                )
                print(f"{path}: {ended.outcome.detail}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    print(tally.table())
    return 1 if tally.findings else 0


def run_cases(
    case_of: Callable[[int], Case], numbers: Iterable[int], *, jobs: int
) -> Iterator[Ended]:
    """Run cases in forked children, some at a time, and yield how each ended."""
    gc.collect()
    gc.freeze()  # or else each child's collections would copy all of the heap
    waiting: Iterator[int] = iter(numbers)
    left: List[int] = []  # by a child that ended early
    running: List[Child] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch, ExitStack() as stack:
        stack.callback(lambda: [child.stop() for child in running])
        while True:
            while len(running) < jobs:
                chunk = [*left, *islice(waiting, _CHUNK - len(left))]
                left = []
                if not chunk:
                    break
                running.append(Child([_work(case_of, n, scratch) for n in chunk]))
            if not running:
                return
            for child in list(running):
                ended = child.poll(1 if len(running) == 1 else 0.005)
                if child.ended:
                    running.remove(child)
                    left += [int(work.folder.name) for work in child.left]
                    for work in child.left:
                        shutil.rmtree(work.folder)
                if ended:
                    folder, outcome = ended[0].folder, ended[1]
                    name = (folder / "command").read_text()
                    shutil.rmtree(folder)
                    yield Ended(int(folder.name), name, outcome)


def _work(case_of: Callable[[int], Case], number: int, scratch: str) -> Work:
    folder = Path(scratch) / str(number)
    folder.mkdir()
    words: List[str] = []

    def prepare() -> bytes:
        case = case_of(number)
        (folder / "command").write_text(case.command)
        case.write(folder / INPUTS)
        words.extend([case.command, *case.arguments])
        return case.stdin

    return Work(folder, lambda: run_command(words), prepare)


class Tally:
    """Counts of outcomes by command, and progress on stderr."""

    def __init__(self, total: int):
        self._total = total
        self._start = self._shown = time.monotonic()
        self.counts: Counter[Tuple[str, str]] = collections.Counter()
        self.findings: Counter[str] = collections.Counter()
        self._details: Dict[str, Outcome] = {}
        self._resident = 0  # bytes, the most that a case added

    def add(self, ended: Ended) -> bool:
        """Count a case; whether it is a finding of a cause not seen before."""
        self.counts[ended.name, ended.outcome.kind] += 1
        self._resident = max(self._resident, ended.outcome.resident)
        if time.monotonic() - self._shown > _PROGRESS_SECONDS:
            self._shown = time.monotonic()
            print(self._progress(), file=sys.stderr)
        if not ended.outcome.found:
            return False
        name = finding_name(ended.name, ended.outcome)
        self.findings[name] += 1
        self._details.setdefault(name, ended.outcome)
        return self.findings[name] == 1

    def table(self) -> str:
        """Outcomes by command, then the findings, most frequent first."""
        kinds = [*GOOD, *FOUND]
        lines = ["command".ljust(12) + "".join(kind.rjust(11) for kind in kinds)]
        for name in COMMANDS:
            row = (str(self.counts[name, kind] or "").rjust(11) for kind in kinds)
            lines.append(name.ljust(12) + "".join(row))
        most = f"the largest case added {self._resident >> 20} MB of memory"
        lines += ["", self._progress(), most]
        for name, count in self.findings.most_common():
            outcome = self._details[name]
            lines.append(f"{count:6} {name}  {outcome.frame}  {outcome.detail[:120]!r}")
        return "\n".join(lines)

    def _progress(self) -> str:
        done, seconds = sum(self.counts.values()), time.monotonic() - self._start
        return (
            f"{done} of {self._total} cases, {done / seconds:.1f} a second,"
            f" {sum(self.findings.values())} findings of {len(self.findings)} causes"
        )


def _replay(saved: List[Tuple[str, Case]], *, jobs: int) -> int:
    """Run saved cases again; each must be refused cleanly, or succeed."""
    failed = 0
    for ended in run_cases(lambda n: saved[n][1], range(len(saved)), jobs=jobs):
        outcome = ended.outcome
        failed += outcome.found
        print(f"{outcome.kind:10} {saved[ended.number][0]} {outcome.frame}")
    print(f"{len(saved)} saved cases, {failed} of them fail")
    return 1 if failed else 0


def _show(case_of: Callable[[int], Case], options: argparse.Namespace) -> int:
    """Run one case, and say all about it."""
    number, case = options.only, case_of(options.only)
    (ended,) = run_cases(case_of, [number], jobs=1)
    outcome = ended.outcome
    print(f"onelayer-lottery {case.command} {' '.join(case.arguments)}")
    print(f"{case.note}\n{outcome.kind}: {outcome.detail} {outcome.frame}")
    if options.show:
        print(outcome.stderr)
        path = save_finding(case, outcome, seed=options.seed, number=number)
        print(f"its files are in {path}")
    return 1 if outcome.found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=5000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--only", type=int, metavar="N", help="run case N alone")
    parser.add_argument(
        "--show", action="store_true", help="with --only: show stderr, keep the files"
    )
    parser.add_argument(
        "--replay",
        type=Path,
        nargs="?",
        const=REGRESSIONS,
        metavar="DIR",
        help=f"run the cases saved in DIR (default: {REGRESSIONS.name}; findings of"
        f" this machine are in {FINDINGS.name})",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
