"""Plots: each function draws one panel on an Axes and returns that."""

from __future__ import annotations

import io
import re
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from onelayer_lottery.experiments.plot.panels import MEASURES, Line, Panel, spread

# Okabe and Ito's palette, safe for colour-blind readers; legible on dark too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A8A00")
MARKERS = "osD^vPX"
DENSE = "#808080"
# The colour of text and axes; a page replaces it by the colour of its text.
INK = "#000001"

Draw = Callable[[Axes], Any]

_INSIDE = 6  # most labels of a legend inside the axes

_STYLE: Dict[str, Any] = {
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick")},
    **{f"axes.{part}color": INK for part in ("label", "edge", "title")},
    "legend.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": DENSE,
    "grid.alpha": 0.25,
    "font.size": 11,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "font.family": "sans-serif",
}


def plot_by_keep(panel: Panel, ax: Optional[Axes] = None) -> Axes:
    """Draw score by fraction kept: a line per variant, a level for dense models.

    Mean and one standard deviation over the seeds, as in the paper's figures.
    """
    ax = ax or plt.gca()
    drawn = False
    greys = 0
    for number, line in enumerate(line for line in panel.lines if not line.dense):
        points = sorted(
            line.spreads(panel.measure).items(), key=lambda point: point[0] or 0
        )
        if not points:
            continue
        drawn = True
        keeps = [100 * (keep or 0) for keep, _ in points]
        means = [point.mean for _, point in points]
        colour = COLOURS[number % len(COLOURS)]
        marker = MARKERS[number % len(MARKERS)]
        low = [point.mean - point.deviation for _, point in points]
        high = [point.mean + point.deviation for _, point in points]
        ax.fill_between(keeps, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(keeps, means, color=colour, marker=marker, label=line.label)
    for line in panel.lines:
        spreads = line.spreads(panel.measure) if line.dense else {}
        for point in spreads.values():
            drawn = True
            style = ("--", ":", "-.")[greys % 3]
            greys += 1
            ax.axhline(point.mean, color=DENSE, linestyle=style, label=line.label)
            edges = point.mean - point.deviation, point.mean + point.deviation
            ax.axhspan(*edges, color=DENSE, alpha=0.2, linewidth=0)
    ax.set_xlim(0, 100)
    ax.set_xlabel("kept weights, %")
    ax.set_ylabel(MEASURES[panel.measure])
    ax.set_title(panel.corpus)
    if drawn:
        ax.legend(loc="best")
    _write_missing(ax, panel.missing, drawn)
    return ax


def plot_curves(panel: Panel, line: Line, ax: Optional[Axes] = None) -> Axes:
    """Draw the validation loss of a variant by updates, one line per fraction kept."""
    ax = ax or plt.gca()
    dense = [(other, None) for other in panel.lines if other.dense and other != line]
    keeps = sorted(keep for keep in line.runs if keep is not None)
    shades = plt.get_cmap("viridis")
    for other, keep in [(line, keep) for keep in keeps] + dense:
        curve = _mean_curve(other.runs[keep])
        if not curve:
            continue
        place = keeps.index(keep) / max(1, len(keeps) - 1) if keep is not None else 0
        ax.plot(
            list(curve),
            list(curve.values()),
            color=DENSE if keep is None else shades(0.9 * place),
            linestyle="--" if keep is None else "-",
            label=other.label if keep is None else f"keep {keep:g}",
        )
    ax.set_xlabel("updates")
    ax.set_ylabel("validation nll_loss, bits")
    ax.set_title(f"{line.label}, {panel.corpus}")
    if ax.lines:
        ax.legend(ncol=2)
    _write_missing(ax, [], bool(ax.lines))
    return ax


def plot_compared(panel: Panel, ax: Optional[Axes] = None) -> Axes:
    """Draw the validation loss by updates, one line per variant."""
    ax = _plot_series(panel, _mean_curve, ax)
    ax.set_ylabel("validation nll_loss, bits")
    return ax


def plot_flips(panel: Panel, ax: Optional[Axes] = None) -> Axes:
    """Draw the flip rate, the fraction of mask bits an update flips, by updates."""
    ax = _plot_series(panel, _mean_flips, ax)
    ax.set_ylabel("mask bits flipped by an update, %")
    return ax


def _plot_series(
    panel: Panel, series: Callable[[List[Any]], Dict[int, float]], ax: Optional[Axes]
) -> Axes:
    ax = ax or plt.gca()
    for number, line in enumerate(panel.lines):
        runs = [run for some in line.runs.values() for run in some]
        points = series(runs)
        if points:
            ax.plot(
                list(points),
                list(points.values()),
                color=DENSE if line.dense else COLOURS[number % len(COLOURS)],
                # When the colours are used up, dash the lines.
                linestyle="--" if line.dense or number >= len(COLOURS) else "-",
                label=line.label,
            )
    ax.set_xlabel("updates")
    ax.set_title(panel.corpus)
    if ax.lines:
        _legend(ax)
    _write_missing(ax, [], bool(ax.lines))
    return ax


def plot_bytes(panels: List[Panel], ax: Optional[Axes] = None) -> Axes:
    """Draw score by bytes of the model: tickets, and dense models in fp32 and int8.

    All panels are of one corpus. int8 models were not run: their bytes are drawn at the
    score of fp32.
    """
    ax = ax or plt.gca()
    measure = panels[0].measure
    seen: Dict[Tuple[str, ...], str] = {}
    styles: Dict[str, Tuple[str, str]] = {}
    for panel in panels:
        for line in panel.lines:
            for keep, runs in line.runs.items():
                runs = [run for run in runs if measure in run]
                key = tuple(run["id"] for run in runs)
                if not runs or key in seen:
                    continue
                seen[key] = line.label
                score = spread([run[measure] for run in runs])
                colour, marker = styles.setdefault(
                    line.label,
                    (COLOURS[len(styles) % 7], MARKERS[len(styles) % 7])
                    if keep is not None
                    else (DENSE, "s*hp8"[len(styles) % 5]),
                )
                for precision, filled in _precisions(keep):
                    if not all(precision in run["bytes"] for run in runs):
                        continue
                    size = spread([run["bytes"][precision] for run in runs]).mean
                    ax.errorbar(
                        size / 1e6,
                        score.mean,
                        yerr=score.deviation,
                        color=colour,
                        marker=marker,
                        linestyle="none",
                        markerfacecolor=colour if filled else "none",
                        label=_byte_label(line.label, precision),
                    )
    ax.set_xlabel("bytes of the model without dictionaries, MB")
    ax.set_ylabel(MEASURES[measure])
    ax.set_title(panels[0].corpus)
    if seen:
        ax.set_xscale("log")
        _legend(ax)
    _write_missing(ax, [], bool(seen))
    return ax


def _legend(ax: Axes) -> None:
    """Show each label once: inside the axes or, if there are many, below them."""
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles))
    below: Dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.2)}
    ax.legend(
        unique.values(), unique.keys(), **(below if len(unique) > _INSIDE else {})
    )


def draw_svg(draws: List[Draw], *, name: str, page: bool = False) -> str:
    """Return panels side by side as SVG; for a page, in the page's colours."""
    style: Dict[Any, Any] = {**_STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure, axes = plt.subplots(
            1, len(draws), figsize=(5.2 * len(draws), 4), squeeze=False
        )
        try:
            for draw, ax in zip(draws, axes[0]):
                draw(ax)
            below = [len(set(ax.get_legend_handles_labels()[1])) for ax in axes[0]]
            if max(below) > _INSIDE:
                figure.set_figheight(4 + 0.24 * max(below))
            figure.tight_layout()
            out = io.StringIO()
            figure.savefig(out, format="svg", transparent=page, metadata={"Date": None})
        finally:
            plt.close(figure)
    text = out.getvalue()
    if page:
        text = text[text.index("<svg") :].replace(INK, "currentColor")
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text


def _precisions(keep: Optional[float]) -> Tuple[Tuple[str, bool], ...]:
    if keep is None:
        return (("fp32", True), ("int8", False))
    return (("ticket_without_dictionaries", True),)


def _byte_label(label: str, precision: str) -> str:
    return {"fp32": f"{label}, fp32", "int8": f"{label}, int8 (score of fp32)"}.get(
        precision, label
    )


def _mean_curve(runs: List[Dict[str, Any]]) -> Dict[int, float]:
    """Return the mean loss at updates where every run was validated."""
    return _mean(
        {
            point["update"]: point["nll_loss"]
            for point in run["curve"]
            if "nll_loss" in point
        }
        for run in runs
    )


def _mean_flips(runs: List[Dict[str, Any]]) -> Dict[int, float]:
    """Return the mean flip rate in per cent where every run has one."""
    return _mean(
        {point["update"]: 100 * point["rate"] for point in run.get("flips", [])}
        for run in runs
    )


def _mean(series: Iterable[Dict[int, float]]) -> Dict[int, float]:
    every = list(series)
    shared = sorted(set.intersection(*map(set, every))) if every else []
    return {at: sum(one[at] for one in every) / len(every) for at in shared}


def _write_missing(ax: Axes, missing: List[str], drawn: bool) -> None:
    """Name missing runs in the figure itself."""
    if not drawn:
        ax.text(0.5, 0.5, "no finished run yet", ha="center", transform=ax.transAxes)
    elif missing:
        heads = "; ".join(text.split(" runs are missing")[0] for text in missing)
        ax.annotate(
            f"missing: {heads}",
            (0, 0),
            xytext=(0, -42),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=8,
            color=DENSE,
        )
