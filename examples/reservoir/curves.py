"""Table and plot of the sweep: BLEU and validation loss against time, and their areas.

    python examples/reservoir/curves.py RUNS examples/reservoir/times.json -o OUT

RUNS is the folder of the sweep, or one with its results.jsonl. The time of a point is
its number of updates times the seconds per update of times.py. The area under a curve
is that of "Reservoir Transformers": the integral over time until T, the longest time of
all variants; a variant that ends earlier keeps its last value. It is given as a part of
the largest.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Dict, List, Sequence, Tuple

import yaml

from onelayer_lottery.experiments.results import read_results

HERE = Path(__file__).parent
COLOURS = ("#000000", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("times", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("."))
    words = parser.parse_args()
    seconds = json.loads(words.times.read_text(encoding="utf-8"))["seconds"]
    variants = yaml.safe_load((HERE / "grid.yaml").read_text("utf-8"))["variants"]
    results: Dict[str, List[Dict[str, Any]]] = defaultdict(list)
    for result in read_results(words.runs).values():
        if result["status"] == "finished":
            results[result["variant"]].append(result)
    labels = {n: f.get("label", n) for n, f in variants.items() if results[n]}
    print(table(labels, results, seconds))
    words.output.mkdir(parents=True, exist_ok=True)
    draw(labels, results, seconds, words.output / "bleu_and_loss_by_seconds.png")


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


def table(labels: Dict[str, str], results: Dict, seconds: Dict[str, float]) -> str:
    """Markdown; with mean and standard deviation over the seeds."""
    updates = {p["update"] for n in labels for r in results[n] for p in r["curve"]}
    end = max(updates) * max(seconds[name] for name in labels)
    areas = {
        metric: {
            name: [area(curve(r, metric, seconds[name]), end) for r in results[name]]
            for name in labels
        }
        for metric in ("bleu", "loss")
    }
    largest = {metric: max(map(max, of.values())) for metric, of in areas.items()}
    heads = ["layers", "seeds", "test BLEU", "validation loss", "seconds per update"]
    heads += [f"seconds of {max(updates)}", "area, BLEU", "area, loss"]
    heads += ["values trained"]
    lines = [heads, ["---"] * len(heads)]
    for name, label in labels.items():
        found = results[name]
        weights = found[0]["weights"]
        lines.append(
            [
                label,
                str(len(found)),
                spread([r["bleu"] for r in found], 2),
                spread([r["curve"][-1]["loss"] for r in found], 3),
                f"{seconds[name]:.3f}",
                f"{max(updates) * seconds[name]:.0f}",
                *(
                    spread([a / largest[m] for a in areas[m][name]], 3)
                    for m in ("bleu", "loss")
                ),
                f"{weights.get('values', weights.get('trained')):,}",
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: Sequence[float], digits: int) -> str:
    middle = f"{mean(values):.{digits}f}"
    return f"{middle} ±{stdev(values):.{digits}f}" if len(values) > 1 else middle


def draw(
    labels: Dict[str, str], results: Dict, seconds: Dict[str, float], path: Path
) -> None:
    """Both metrics against time: mean over the seeds, a band of one deviation."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq asks for more
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    heads = {"bleu": "validation BLEU (greedy)", "loss": "validation loss (bits)"}
    for ax, (metric, head) in zip(axes, heads.items()):
        for colour, (name, label) in zip(COLOURS, labels.items()):
            curves = [curve(r, metric, seconds[name])[1:] for r in results[name]]
            times = [time for time, _ in curves[0]]
            values = [[value for _, value in points] for points in zip(*curves)]
            middle = [mean(v) for v in values]
            around = [stdev(v) if len(v) > 1 else 0.0 for v in values]
            ax.plot(times, middle, color=colour, label=label, marker=".")
            low = [m - a for m, a in zip(middle, around)]
            high = [m + a for m, a in zip(middle, around)]
            ax.fill_between(times, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.set_xlabel("seconds of training (updates x seconds per update)")
        ax.set_ylabel(head)
    axes[0].legend(fontsize="small")
    seeds = sorted({len(results[name]) for name in labels})
    counts = (
        f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"seeds: {seeds[0]}"
    )
    figure.suptitle(f"Multi30k de-en, width 64, 3+3 layers, {counts}", size="medium")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
