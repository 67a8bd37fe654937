"""Arrange results in panels and lines, and list the runs that are missing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.results import (
    Result,
    read_complete_results,
    read_plans,
)

# What a panel shows: the first of these that its runs have.
MEASURES = {
    "bleu": "BLEU",
    "bits_per_character": "bits per character",
    "perplexity": "perplexity",
    "accuracy": "accuracy, %",
}


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds."""

    mean: float
    deviation: float
    count: int  # type: ignore[assignment]  # hides a method of tuple


@dataclass
class Line:
    """The runs of a variant by the fraction kept, which is None for a dense model."""

    label: str
    table1: Optional[str]
    runs: Dict[Optional[float], List[Result]] = field(default_factory=dict)

    @property
    def dense(self) -> bool:
        return set(self.runs) == {None}

    def spreads(self, measure: str) -> Dict[Optional[float], Spread]:
        """Return mean and deviation of a measure by fraction kept."""
        spreads = {}
        for keep, runs in self.runs.items():
            values = [run[measure] for run in runs if measure in run]
            if values:
                spreads[keep] = spread(values)
        return spreads


@dataclass
class Panel:
    """One grid on one corpus, drawn on one pair of axes."""

    name: str
    figure: Optional[int]
    title: str
    corpus: str
    measure: str  # one of MEASURES
    lines: List[Line]
    missing: List[str]  # a sentence for each line that is not complete

    @property
    def by_variant(self) -> bool:
        """Whether it compares variants instead of fractions kept."""
        return all(len(line.runs) == 1 for line in self.lines)


def spread(values: List[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), deviation, len(values))


def read_panels(folder: Path) -> List[Panel]:
    """Return the panels of all grids that were swept into a folder."""
    plans = read_plans(folder)
    if not plans:
        raise LotteryError(
            f"{folder} holds no runs (no plans/*.json); make some with onelayer-lottery"
            f" sweep GRID.yaml --out {folder}"
        )
    results = read_complete_results(folder)
    return [_panel(plan, results) for plan in plans]


def finished_runs(panels: List[Panel]) -> List[Result]:
    """Return every finished run once."""
    every = (
        run
        for panel in panels
        for line in panel.lines
        for r in line.runs.values()
        for run in r
    )
    return list({run["id"]: run for run in every}.values())


def _panel(plan: Dict[str, Any], results: Dict[str, Result]) -> Panel:
    lines, missing, measures = [], [], set()
    for variant in plan["variants"]:
        line = Line(variant["label"], variant["table1"])
        planned = [run for run in plan["runs"] if run["variant"] == variant["name"]]
        lost = []
        for run in planned:
            result = results.get(run["id"], {})
            line.runs.setdefault(run["keep"], [])
            if result.get("status") == "finished":
                line.runs[run["keep"]].append(result)
                measures |= set(MEASURES) & set(result)
            else:
                failed = " (failed)" if result else ""
                keep = "" if run["keep"] is None else f"keep {run['keep']:g} "
                lost.append(f"{keep}seed {run['seed']}{failed}")
        lines.append(line)
        if lost:
            missing.append(
                f"{line.label}: {len(lost)} of {len(planned)} runs are missing:"
                f" {', '.join(lost)}"
            )
    return Panel(
        name=plan["name"],
        figure=plan["figure"],
        title=plan["title"],
        corpus=plan["corpus"],
        measure=next((name for name in MEASURES if name in measures), "bleu"),
        lines=lines,
        missing=missing,
    )
