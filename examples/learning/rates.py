"""Draw the validation loss against the learning rate, a line for each width.

    python examples/learning/rates.py RUNS -o examples/learning/results/width

RUNS is the folder of the sweep of width.yaml. The left panel has the sizes of scores
of 0.1.0, the right one those of --mask-preset best; crosses mark the lowest loss of
each width. It also prints the losses as a table in Markdown.
"""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from pathlib import Path
from typing import Dict

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from onelayer_lottery.experiments.plot.figures import COLOURS, MARKERS
from onelayer_lottery.experiments.results import read_results

logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq turns it up

TITLES = {"before": "scores as in 0.1.0", "width": "scores by width"}
PRESET_RATE = 3e-3

Losses = Dict[str, Dict[int, Dict[float, float]]]  # by panel, width and rate


def losses_of(runs: Path) -> Losses:
    """The last validation loss of each run."""
    found: Losses = defaultdict(lambda: defaultdict(dict))
    for run in read_results(runs).values():
        panel, _, width = run["variant"].partition("-")
        if run["status"] == "finished" and panel in TITLES:
            rate = float(run["config"]["train"]["lr"])
            found[panel][int(width)][rate] = run["curve"][-1]["nll_loss"]
    return found


def draw(losses: Losses, path: Path) -> None:
    panels = [panel for panel in TITLES if losses[panel]]
    size = (4.5 * len(panels), 4)
    figure, axes = plt.subplots(
        *(1, len(panels)), figsize=size, sharey=True, layout="tight", squeeze=False
    )
    for ax, panel in zip(axes[0], panels):
        for number, (width, points) in enumerate(sorted(losses[panel].items())):
            rates = sorted(points)
            colour, marker = COLOURS[number], MARKERS[number]
            values = [points[rate] for rate in rates]
            ax.plot(rates, values, color=colour, marker=marker, label=f"width {width}")
            best = min(points, key=lambda rate: points[rate])
            ax.plot(best, points[best], "x", color=colour, markersize=14)
        ax.axvline(PRESET_RATE, color="grey", linestyle=":", label="--lr 3e-3")
        ax.set(xscale="log", xlabel="learning rate", title=TITLES[panel])
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("validation nll_loss (bits)")
    axes[0][-1].legend()
    figure.savefig(path / "loss_by_rate.svg")


def table(losses: Losses) -> str:
    lines = []
    for panel, title in TITLES.items():
        if not losses[panel]:
            continue
        rates = sorted({r for points in losses[panel].values() for r in points})
        lines += ["| " + " | ".join([title, *(f"{r:g}" for r in rates)]) + " |"]
        lines += ["|---" * (len(rates) + 1) + "|"]
        for width, points in sorted(losses[panel].items()):
            cells = (f"{points[r]:.3f}" if r in points else "" for r in rates)
            lines.append(f"| width {width} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    losses = losses_of(options.runs)
    if not losses:
        parser.error(f"{options.runs} has no finished run of width.yaml")
    options.output.mkdir(parents=True, exist_ok=True)
    draw(losses, options.output)
    print(table(losses))


if __name__ == "__main__":
    main()
