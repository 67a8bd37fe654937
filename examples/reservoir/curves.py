"""Table and plot of a sweep: BLEU and validation loss against time, and their areas.

    python examples/reservoir/curves.py RUNS examples/reservoir/times.json -o OUT

RUNS is the folder of the sweep of --grid, or one with its results.jsonl. Language
models have bits per character instead of BLEU, and only the loss in the plot. The time
of a point is its number of updates times the seconds per update of times.py. The area
under a curve is that of "Reservoir Transformers": the integral over time until T, the
longest time of all variants; a variant that ends earlier keeps its last value. It is
given as a part of the largest. The seconds to a loss are those at which a straight line
between two validations crosses it; the loss is the highest with which any run ends, or
that of --loss. Scores count as trained values. Bytes are those of a ticket without
dictionaries, or of dense weights in fp32.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import yaml

from onelayer_lottery.experiments.plot.figures import COLOURS, MARKERS
from onelayer_lottery.experiments.results import read_results

HERE = Path(__file__).parent
HEADS = {"bleu": "validation BLEU (greedy)", "loss": "validation loss (bits)"}
SCORES = {"bleu": ("test BLEU", 2), "bits_per_character": ("bits per character", 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("times", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("."))
    parser.add_argument("--grid", type=Path, default=HERE / "grid.yaml")
    parser.add_argument(
        "--loss", type=float, help="measure the seconds to this validation loss"
    )
    words = parser.parse_args()
    paces = json.loads(words.times.read_text(encoding="utf-8"))["seconds"]
    grid = yaml.safe_load(words.grid.read_text("utf-8"))
    lines = lines_of(grid["variants"], words.runs, paces)
    print(table(lines, words.loss))
    words.output.mkdir(parents=True, exist_ok=True)
    draw(lines, f"{grid['corpus']}: {grid['title']}", words.output)


class Line(NamedTuple):
    """The runs of a variant, of one fraction kept if the grid has several."""

    label: str
    runs: List[Dict[str, Any]]
    pace: float  # seconds per update


def lines_of(variants: Dict, runs: Path, paces: Dict[str, float]) -> List[Line]:
    found: Dict[Tuple[str, str], List[Dict[str, Any]]] = defaultdict(list)
    for result in read_results(runs).values():
        if result["status"] == "finished":
            keep = result["config"]["train"].get("mask-keep", "")
            found[result["variant"], keep].append(result)
    lines = []
    for name, flags in variants.items():
        label = flags.get("label", name)
        for (variant, keep), results in sorted(found.items()):
            if variant == name:
                kept = f", keep {keep}" if keep else ""
                lines.append(Line(label + kept, results, paces[name]))
    return lines


def metrics_of(lines: List[Line]) -> List[str]:
    """What the validations of all runs measured, in the order of the table."""
    points = [point for line in lines for r in line.runs for point in r["curve"]]
    return [name for name in HEADS if all(name in point for point in points)]


def curve(result: Dict[str, Any], name: str, pace: float) -> List[Tuple[float, float]]:
    """(seconds, value) of each validation, from second 0 on.

    There BLEU is 0; the loss is not measured there, and that of the first validation
    takes its place.
    """
    points = [(p["update"] * pace, p[name]) for p in result["curve"]]
    return [(0.0, 0.0 if name == "bleu" else points[0][1]), *points]


def area(points: Sequence[Tuple[float, float]], end: float) -> float:
    """The area under straight lines from point to point, the last value kept to end."""
    points = [*points, (end, points[-1][1])]
    return sum(
        (after - before) * (low + high) / 2
        for (before, low), (after, high) in zip(points, points[1:])
    )


def seconds_to(points: Sequence[Tuple[float, float]], level: float) -> float:
    """When a falling curve first reaches a level; infinite if it never does."""
    if points[0][1] <= level:
        return points[0][0]
    for (before, high), (after, low) in zip(points, points[1:]):
        if low <= level:
            return before + (high - level) / (high - low) * (after - before)
    return math.inf


def table(lines: List[Line], level: Optional[float] = None) -> str:
    """Markdown; with mean and standard deviation over the seeds."""
    metrics = metrics_of(lines)
    updates = max(p["update"] for line in lines for r in line.runs for p in r["curve"])
    end = updates * max(line.pace for line in lines)
    areas = {
        metric: [
            [area(curve(r, metric, line.pace), end) for r in line.runs]
            for line in lines
        ]
        for metric in metrics
    }
    if level is None:
        ends = [r["curve"][-1]["loss"] for line in lines for r in line.runs]
        level = math.ceil(1000 * max(ends)) / 1000
    score = next(name for name in SCORES if name in lines[0].runs[0])
    head, digits = SCORES[score]
    heads = ["layers", "seeds", head, "validation loss", "seconds per update"]
    heads += [f"seconds of {updates}"]
    heads += [f"area, {metric.replace('bleu', 'BLEU')}" for metric in metrics]
    heads += [f"seconds to a loss of {level:.3f}", "values trained", "bytes"]
    rows = [heads, ["---"] * len(heads)]
    for number, line in enumerate(lines):
        weights, size = line.runs[0]["weights"], line.runs[0]["bytes"]
        trained = weights.get("values") or weights["trained"] + weights["positions"]
        relative = []
        for metric in metrics:
            largest = max(map(max, areas[metric]))
            relative.append(spread([a / largest for a in areas[metric][number]], 3))
        curves = [curve(r, "loss", line.pace)[1:] for r in line.runs]
        waits = [seconds_to(points, level) for points in curves]
        rows.append(
            [
                line.label,
                str(len(line.runs)),
                spread([r[score] for r in line.runs], digits),
                spread([r["curve"][-1]["loss"] for r in line.runs], 3),
                f"{line.pace:.3f}",
                f"{updates * line.pace:.0f}",
                *relative,
                spread(waits, 0) if max(waits) < math.inf else "not reached",
                f"{trained:,}",
                f"{size.get('fp32') or size['ticket_without_dictionaries']:,}",
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def spread(values: Sequence[float], digits: int) -> str:
    middle = f"{mean(values):.{digits}f}"
    return f"{middle} ±{stdev(values):.{digits}f}" if len(values) > 1 else middle


def draw(lines: List[Line], title: str, folder: Path) -> None:
    """Each metric against time: mean over the seeds, a band of one deviation."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq asks for more
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    metrics = metrics_of(lines)
    figure, axes = pyplot.subplots(
        1,
        len(metrics),
        figsize=(2 + 4.5 * len(metrics), 4),
        layout="constrained",
        squeeze=False,
    )
    for ax, metric in zip(axes[0], metrics):
        for number, line in enumerate(lines):
            curves = [curve(r, metric, line.pace)[1:] for r in line.runs]
            times = [time for time, _ in curves[0]]
            values = [[value for _, value in points] for points in zip(*curves)]
            middle = [mean(v) for v in values]
            around = [stdev(v) if len(v) > 1 else 0.0 for v in values]
            colour = COLOURS[number % len(COLOURS)]
            marker = MARKERS[number % len(MARKERS)]
            ax.plot(
                *(times, middle),
                **{"color": colour, "label": line.label, "marker": marker},
                linestyle="-" if number < len(COLOURS) else ":",
                markersize=4,
            )
            low = [m - a for m, a in zip(middle, around)]
            high = [m + a for m, a in zip(middle, around)]
            ax.fill_between(times, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.set_xlabel("seconds of training (updates x seconds per update)")
        ax.set_ylabel(HEADS[metric])
    axes[0][0].legend(fontsize="small")
    seeds = sorted({len(line.runs) for line in lines})
    counts = (
        f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"seeds: {seeds[0]}"
    )
    figure.suptitle(f"{title}, {counts}", size="medium")
    figure.savefig(folder / f"{'_and_'.join(metrics)}_by_seconds.png", dpi=120)


if __name__ == "__main__":
    main()
