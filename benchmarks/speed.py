"""Speed and memory of masked models, as ratios to the stock dense one in the same run.

    python benchmarks/speed.py               all of it
    python benchmarks/speed.py --only step-512 checkpoint
    python benchmarks/speed.py --profile     where the time of a training step goes

Prints a table of the targets in Markdown and writes speed.json and speed.png. A row
whose interval spans its target gets neither a median nor a verdict, and the command
ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from measure import (
    FEWEST_ROUNDS,
    HEADS,
    TOO_NOISY,
    count_cpu_time,
    hush_fairseq,
    machine,
    markdown,
    say,
)
from models import KINDS
from rows import FULL, QUICK, ROWS
from scaling import describe, draw, measure_scaling
from step_profile import profile_table

from onelayer_lottery.files import whole_file

SCALING = "scaling"


def main() -> None:
    options = parse()
    hush_fairseq()
    plan = QUICK if options.quick else FULL
    if options.rounds:
        kinds = ("rounds", "short_rounds", "memory_rounds")
        plan = replace(plan, **dict.fromkeys(kinds, options.rounds))
    if not any(name.startswith("sort") for name in options.only):
        plan = replace(plan, kinds=tuple(k for k in KINDS if k != "sort"))
    if options.cpu_time:
        count_cpu_time()
    if options.profile:
        for tokens in (512, 4096):
            print(profile_table(plan.size, tokens), end="\n\n")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    started, rows = time.time(), []
    for name in (name for name in options.only if name != SCALING):
        say(f"measuring {name}")
        rows.append(ROWS[name](plan, name))
    scaling = measure_scaling(plan) if SCALING in options.only else {}
    report = {
        "machine": machine(),
        "minutes": round((time.time() - started) / 60, 1),
        "rows": {row.name: row.record() for row in rows},
        "scaling": scaling,
    }
    with whole_file(options.out / "speed.json") as file:
        file.write(json.dumps(report, indent=1).encode())
    if rows:
        print(markdown(HEADS, [row.cells() for row in rows]))
    for row in rows:
        if row.detail:
            print(f"\n{row.name}: {row.detail}")
    if scaling:
        draw(scaling, options.out / "speed.png", machine=report["machine"])
        print(f"\n{describe(scaling)}")
    print("\n" + ", ".join(f"{k} {v}" for k, v in report["machine"].items()))
    say(f"wrote {options.out}/speed.json, {report['minutes']} minutes")
    noisy = [row.name for row in rows if row.verdict() == TOO_NOISY]
    if noisy:
        raise SystemExit(
            f"too noisy to tell: {', '.join(noisy)}; stop what else runs on this"
            " machine, or give more --rounds"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*ROWS, SCALING]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        default=names,
        metavar="ROW",
        help=f"measure only these: {', '.join(names)}",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"of every ratio (default {FULL.rounds}, of steps of 512 tokens"
        f" {FULL.short_rounds}, of memory {FULL.memory_rounds}; at least"
        f" {FEWEST_ROUNDS})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-out"),
        help="folder of speed.json and speed.png, replaced (default bench-out)",
    )
    parser.add_argument("--quick", action="store_true", help="a toy model, to try it")
    parser.add_argument(
        "--profile", action="store_true", help="only show where a step's time goes"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="compare CPU time instead of the clock's, on a machine that is busy; give"
        " it one thread, by OMP_NUM_THREADS=1",
    )
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < FEWEST_ROUNDS:
        parser.error(
            f"--rounds is {options.rounds}: too few to tell a difference from noise;"
            f" give {FEWEST_ROUNDS} or more"
        )
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out} is a file; give a folder")
    if SCALING in options.only and not options.profile and not find_spec("matplotlib"):
        parser.error(
            "scaling is drawn by matplotlib, which is not installed; install it or name"
            " the other rows by --only"
        )
    return options


if __name__ == "__main__":
    main()
