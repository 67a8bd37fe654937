"""The runs of a sweep as a table in Markdown: loss, BLEU, bytes and flip rates.

    python examples/learning/table.py RUNS
    python examples/learning/table.py RUNS --grid figure2 --by-keep

Mean and standard deviation over the seeds. Bytes are of the ticket without
dictionaries, of a dense model in 32 bits. The flip rate is the part of all mask bits
that one update turns, at the first look (update 100 or so) and at the last. --by-keep
prints only BLEU, a column for each fraction kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.plot.panels import Line, read_panels, spread

HEAD = ("", "seeds", "valid nll_loss", "BLEU", "bytes", "first flip rate", "last")


def cells(label: str, runs: List[Dict[str, Any]]) -> List[str]:
    losses = [min(p["nll_loss"] for p in run["curve"]) for run in runs]
    sizes = [
        run["bytes"].get("fp32") or run["bytes"]["ticket_without_dictionaries"]
        for run in runs
    ]
    flips = [[point["rate"] for point in run["flips"]] for run in runs if run["flips"]]
    return [
        *(label, str(len(runs))),
        with_deviation(losses, 3),
        with_deviation([run["bleu"] for run in runs], 2),
        f"{spread(sizes).mean:,.0f}",
        f"{spread([rates[0] for rates in flips]).mean:.2%}" if flips else "",
        f"{spread([rates[-1] for rates in flips]).mean:.2%}" if flips else "",
    ]


def rows_of(lines: List[Line]) -> Iterator[List[str]]:
    yield list(HEAD)
    for line in lines:
        for keep, runs in line.runs.items():
            several = len(line.runs) > 1
            if runs:
                label = f"{line.label}, keep {keep}" if several else line.label
                yield cells(label, runs)


def rows_by_keep(lines: List[Line]) -> Iterator[List[str]]:
    keeps = sorted({keep for line in lines for keep in line.runs} - {None})
    yield ["BLEU", "whole", *(f"keep {keep}" for keep in keeps)]
    for line in lines:
        bleus = (
            [run["bleu"] for run in line.runs.get(keep, [])] for keep in (None, *keeps)
        )
        yield [line.label, *(with_deviation(b, 2) if b else "" for b in bleus)]


def with_deviation(values: List[float], digits: int) -> str:
    found = spread(values)
    deviation = f" ±{found.deviation:.{digits}f}" if found.count > 1 else ""
    return f"{found.mean:.{digits}f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--grid", help="only the runs of the grid of this name")
    parser.add_argument("--by-keep", action="store_true", help="BLEU by fraction kept")
    args = parser.parse_args()
    try:
        panels = read_panels(args.runs)
    except LotteryError as error:
        sys.exit(str(error))
    lines = [n for p in panels if args.grid in (None, p.name) for n in p.lines]
    head, *rows = (rows_by_keep if args.by_keep else rows_of)(lines)
    for row in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
