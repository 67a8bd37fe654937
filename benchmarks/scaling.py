"""How the time of a step and of its masks grows, measured and drawn."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any, Dict, List

import torch
from measure import linear_fit, say
from models import KINDS, Size, build_trainer
from rows import Plan, step_seconds

from onelayer_lottery.files import whole_file
from onelayer_lottery.planting.contents import masked_weights

NAMES = {"dense": "dense", "ours": "ours", "sort": "ours with a full sort"}
COLOURS = {"dense": "#000000", "ours": "#0072b2", "sort": "#d55e00"}
STEPS = {
    "tokens": "target tokens per batch",
    "width": "width, at 512 tokens",
    "depth": "layers of encoder and of decoder, at 512 tokens",
}
MASKS = {
    "mask_layers": "layers of encoder and of decoder",
    "mask_symbols": "symbols of each dictionary",
}
MASK_ROUNDS = 9


def measure_scaling(plan: Plan) -> Dict[str, Any]:
    """Seconds of steps and of masks: for each axis its places and their rounds."""
    shape, words = plan.size
    sizes = {
        "tokens": {n: (plan.size, n) for n in plan.tokens},
        "width": {
            n: (Size(shape._replace(width=n, ffn=2 * n), words), 512)
            for n in plan.widths
        },
        "depth": {n: (Size(shape._replace(layers=n), words), 512) for n in plan.depths},
    }
    found: Dict[str, Any] = {}
    for axis, places in sizes.items():
        seconds = [
            step_seconds(*at, rounds=plan.scaling_rounds, warm_up=1)
            for at in places.values()
        ]
        found[axis] = {
            "x": list(places),
            "seconds": {kind: [s[kind] for s in seconds] for kind in KINDS},
        }
    layered = [Size(shape._replace(layers=n), words) for n in plan.mask_layers]
    worded = [Size(shape._replace(layers=1), (n, n)) for n in plan.mask_symbols]
    for axis, x, models in (
        ("mask_layers", plan.mask_layers, layered),
        ("mask_symbols", plan.mask_symbols, worded),
    ):
        seconds = [mask_seconds(size) for size in models]
        slope, offset, r2 = linear_fit(x, [median(s) for s in seconds])
        found[axis] = {
            **{"x": list(x), "seconds": seconds},
            **{"slope": slope, "offset": offset, "r2": r2},
        }
    return found


def mask_seconds(size: Size) -> List[float]:
    """Seconds to write all masked weights of a model after an update of its scores."""
    say(f"masks, {size.shape.layers} layers, {size.vocabulary[0]} symbols")
    weights = [
        weight for _, weight in masked_weights(build_trainer("ours", size).model)
    ]
    generator = torch.Generator().manual_seed(1)
    seconds = []
    for _ in range(MASK_ROUNDS + 1):
        with torch.no_grad():
            for weight in weights:  # as far as Adam goes at the recipe's highest rate
                move = torch.rand(weight.scores.shape, generator=generator)
                weight.scores += 5e-4 * (2 * move - 1)
        started = time.perf_counter()
        for weight in weights:
            weight()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]  # the first has no last threshold to start from


def describe(found: Dict[str, Any]) -> str:
    """The straight lines through the times of the masks, for a person."""
    units = {"mask_layers": "layer", "mask_symbols": "symbol"}
    return "\n".join(
        f"time of all masks by {MASKS[axis]} ({found[axis]['x'][0]} to"
        f" {found[axis]['x'][-1]}): {found[axis]['offset'] * 1e3:.2f} ms +"
        f" {found[axis]['slope'] * 1e3:.4f} ms per {unit}, R^2"
        f" {found[axis]['r2']:.4f}"
        for axis, unit in units.items()
    )


def draw(found: Dict[str, Any], path: Path, *, machine: Dict[str, Any]) -> None:
    """Draw all axes; points are medians, bars go from the fastest to the slowest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 3, figsize=(13, 7), constrained_layout=True)
    axes = list(grid.flat)
    axes.pop().set_axis_off()
    for ax, (axis, label) in zip(axes, STEPS.items()):
        for kind in KINDS:
            seconds = found[axis]["seconds"][kind]
            plot(ax, found[axis]["x"], seconds, label=NAMES[kind], color=COLOURS[kind])
        ax.set(xlabel=label, ylabel="seconds per training step")
    for ax, (axis, label) in zip(axes[len(STEPS) :], MASKS.items()):
        at = found[axis]
        ms = [[1e3 * s for s in seconds] for seconds in at["seconds"]]
        plot(ax, at["x"], ms, label="all masks of a model", color=COLOURS["ours"])
        line = [1e3 * (at["offset"] + at["slope"] * x) for x in at["x"]]
        ax.plot(at["x"], line, ":", color="black", label=f"line, R² {at['r2']:.4f}")
        ax.set(xlabel=label, ylabel="milliseconds per update")
    for ax in axes:
        ax.set(xlim=(0, None), ylim=(0, None))
        ax.legend()
    threads = machine["threads"]
    figure.suptitle(f"{machine['cpu']}, {threads} threads, torch {machine['torch']}")
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=80)
    pyplot.close(figure)


def plot(ax: Any, x: List[int], rounds: List[List[float]], **style: Any) -> None:
    middle = [median(values) for values in rounds]
    below = [m - min(values) for m, values in zip(middle, rounds)]
    above = [max(values) - m for m, values in zip(middle, rounds)]
    ax.errorbar(x, middle, yerr=(below, above), marker="o", capsize=3, **style)
