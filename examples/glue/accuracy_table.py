"""Accuracies of swept runs as a table: mean and standard deviation over the seeds."""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Dict, List

from onelayer_lottery.experiments.results import read_results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, metavar="RUNS", help="OUT of the sweep")
    print(table(list(read_results(parser.parse_args().runs).values())))


def table(results: List[dict]) -> str:
    cells: Dict[str, Dict[str, List[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result["status"] == "finished":
            keep = result["config"]["train"].get("mask-keep")
            row = f"{result['variant']}, keep {keep}" if keep else result["variant"]
            cells[row][result["corpus"]].append(result["accuracy"])
    corpora = list(dict.fromkeys(result["corpus"] for result in results))
    lines = [f"| | {' | '.join(corpora)} |", "|---|" + "---|" * len(corpora)]
    for row in sorted(cells):
        shown = (shown_cell(cells[row].get(corpus, [])) for corpus in corpora)
        lines.append(f"| {row} | {' | '.join(shown)} |")
    return "\n".join(lines)


def shown_cell(values: List[float]) -> str:
    if not values:
        return ""
    mean, count = statistics.mean(values), len(values)
    spread = f" ± {statistics.stdev(values):.1f}" if count > 1 else ""
    return (
        f"{mean:.1f}{spread} ({count} seeds)" if count > 1 else f"{mean:.1f} (1 seed)"
    )


if __name__ == "__main__":
    main()
