"""Draw the validation loss against the learning rate, a line for each width or depth.

    python examples/learning/rates.py RUNS -o examples/learning/results/width

RUNS is the folder of the sweep of width.yaml or depth.yaml. The left panel has the
sizes of 0.1.0, the right one those of --mask-preset best; crosses mark the lowest loss
of each line. It also prints the losses as a table in Markdown, with the rate at the
lowest point of the parabola through three losses, in the logarithm of the rate.
"""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from pathlib import Path
from typing import Dict, Optional

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from onelayer_lottery.experiments.plot.figures import COLOURS, MARKERS
from onelayer_lottery.experiments.results import read_results

logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq turns it up

TITLES = {"before": "sizes of 0.1.0", "now": "--mask-preset best"}
PRESET_RATE = 3e-3

Losses = Dict[str, Dict[int, Dict[float, float]]]  # by panel, size and rate


def losses_of(runs: Path) -> Losses:
    """The last validation loss of each run."""
    found: Losses = defaultdict(lambda: defaultdict(dict))
    for run in read_results(runs).values():
        variant, _, size = run["variant"].rpartition("-")
        if run["status"] == "finished":
            rate = float(run["config"]["train"]["lr"])
            panel = "before" if variant == "before" else "now"
            found[panel][int(size)][rate] = run["curve"][-1]["nll_loss"]
    return found


def what_varies(runs: Path) -> str:
    """The word before the sizes of the runs: width or layers."""
    variants = (run["variant"] for run in read_results(runs).values())
    return next((v.rpartition("-")[0] for v in variants if "before" not in v), "size")


def optimum(points: Dict[float, float]) -> Optional[float]:
    """The rate with the lowest loss, if there are rates on both of its sides."""
    rates = sorted(points)
    lowest = rates.index(min(rates, key=lambda rate: points[rate]))
    if not 0 < lowest < len(rates) - 1:
        return None
    around = rates[lowest - 1 : lowest + 2]
    a, b, _ = np.polyfit(np.log(around), [points[rate] for rate in around], 2)
    return float(np.exp(-b / (2 * a)))


def draw(losses: Losses, what: str, path: Path) -> None:
    panels = [panel for panel in TITLES if losses[panel]]
    size = (4.5 * len(panels), 4)
    figure, axes = plt.subplots(
        *(1, len(panels)),
        **{"figsize": size, "sharex": True, "sharey": True},
        layout="tight",
        squeeze=False,
    )
    ticks = sorted({r for p in panels for points in losses[p].values() for r in points})
    for ax, panel in zip(axes[0], panels):
        for number, (size, points) in enumerate(sorted(losses[panel].items())):
            rates = sorted(points)
            colour, marker = COLOURS[number], MARKERS[number]
            values = [points[rate] for rate in rates]
            ax.plot(rates, values, color=colour, marker=marker, label=f"{what} {size}")
            best = min(points, key=lambda rate: points[rate])
            ax.plot(best, points[best], "x", color=colour, markersize=14)
        ax.axvline(PRESET_RATE, color="grey", linestyle=":", label="--lr 3e-3")
        ax.set(xscale="log", xlabel="learning rate", title=TITLES[panel])
        ax.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("validation nll_loss (bits)")
    axes[0][-1].legend()
    figure.savefig(path / "loss_by_rate.svg")


def table(losses: Losses, what: str) -> str:
    lines = []
    for panel, title in TITLES.items():
        if not losses[panel]:
            continue
        rates = sorted({r for points in losses[panel].values() for r in points})
        heads = [title, *(f"{rate:g}" for rate in rates), "lowest at"]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for size, points in sorted(losses[panel].items()):
            cells = [f"{points[r]:.3f}" if r in points else "" for r in rates]
            best = optimum(points)
            cells.append(f"{best:.2g}" if best else "")
            lines.append(f"| {what} {size} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    losses = losses_of(options.runs)
    if not losses:
        parser.error(f"{options.runs} has no finished run of width.yaml or depth.yaml")
    options.output.mkdir(parents=True, exist_ok=True)
    what = what_varies(options.runs)
    draw(losses, what, options.output)
    print(table(losses, what))


if __name__ == "__main__":
    main()
