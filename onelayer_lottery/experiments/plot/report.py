"""Write all figures and tables of a sweep, and one page that shows them."""

from __future__ import annotations

from functools import partial
from html import escape
from pathlib import Path
from typing import Dict, List, NamedTuple

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.plot.figures import (
    MEASURES,
    Draw,
    draw_svg,
    plot_by_keep,
    plot_bytes,
    plot_compared,
    plot_curves,
    plot_flips,
)
from onelayer_lottery.experiments.plot.panels import Panel, finished_runs, read_panels
from onelayer_lottery.experiments.plot.table1 import (
    HEAD,
    as_csv,
    as_markdown,
    format_spread,
    table_rows,
)
from onelayer_lottery.files import whole_file

# Figures of the paper: end of the file name, and heading.
PAPER = {
    2: ("layers", "One frozen layer for all layers, or one for each"),
    3: ("embeddings", "Random and pre-trained embeddings"),
    4: ("depth_width", "Depth and width"),
    5: ("init", "Initialisation of the frozen weights"),
    6: ("qqp", "Sentence pairs: QQP"),
    7: ("mnli", "Sentence pairs: MNLI"),
}


class Figure(NamedTuple):
    """One file with panels side by side."""

    name: str
    heading: str
    caption: str
    draws: List[Draw]
    panels: List[Panel]  # whose numbers and gaps are listed below it


def write_report(runs: Path, out: Path) -> List[str]:
    """Write every figure, Table 1 and report.html; return what is missing."""
    panels = read_panels(runs)
    figures = _figures(panels)
    rows = table_rows(panels)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            _write(out / f"{figure.name}.svg", draw_svg(figure.draws, name=figure.name))
        _write(out / "table1.md", as_markdown(rows))
        _write(out / "table1.csv", as_csv(rows))
        _write(out / "report.html", _page(figures, rows, panels))
    except OSError as error:
        raise LotteryError(f"cannot write in {out}: {error.strerror}") from None
    return [f"{panel.name}: {gap}" for panel in panels for gap in panel.missing]


def _figures(panels: List[Panel]) -> List[Figure]:
    figures = []
    for number, (ending, heading) in PAPER.items():
        own = sorted(
            (panel for panel in panels if panel.figure == number),
            key=lambda panel: panel.corpus,
            reverse=True,  # the paper has WMT14 on the left, IWSLT14 on the right
        )
        if own:
            figures.append(
                Figure(
                    f"figure{number}_{ending}",
                    f"Figure {number}. {heading}",
                    "Mean and one standard deviation over the seeds; dashed, the dense"
                    " model.",
                    [_by_keep(panel) for panel in own],
                    own,
                )
            )
    for panel in panels:
        if panel.figure not in PAPER and not panel.by_variant:
            figures.append(
                Figure(
                    f"{panel.name}_by_keep",
                    panel.title,
                    "Mean and one standard deviation over the seeds.",
                    [_by_keep(panel)],
                    [panel],
                )
            )
    return [*figures, *_byte_figures(panels), *_curve_figures(panels)]


def _byte_figures(panels: List[Panel]) -> List[Figure]:
    corpora: Dict[str, List[Panel]] = {}
    for panel in panels:
        corpora.setdefault(panel.corpus, []).append(panel)
    draws: List[Draw] = [partial(plot_bytes, own) for own in corpora.values()]
    caption = (
        "Tickets hold one bit per weight, entropy-coded, and the kept values of"
        " imported embeddings; dense models 4 bytes per value, or 1 in int8."
    )
    return [Figure("score_by_bytes", "Score by bytes", caption, draws, [])]


def _curve_figures(panels: List[Panel]) -> List[Figure]:
    figures = []
    for panel in panels:
        masked = [line for line in panel.lines if not line.dense]
        draws: List[Draw] = [partial(plot_curves, panel, line) for line in masked]
        caption = "Validation loss, mean over the seeds."
        if panel.by_variant:
            draws = [partial(plot, panel) for plot in (plot_compared, plot_flips)]
            caption = "Validation loss and flip rate, means over the seeds."
        if masked:
            figures.append(
                Figure(
                    f"{panel.name}_curves",
                    f"Learning curves: {panel.title}",
                    caption,
                    draws,
                    [panel] if panel.by_variant else [],
                )
            )
    return figures


def _by_keep(panel: Panel) -> Draw:
    return lambda ax: plot_by_keep(panel, ax)


def _page(figures: List[Figure], rows: List[List[str]], panels: List[Panel]) -> str:
    runs = finished_runs(panels)
    absent = [n for n in PAPER if not any(panel.figure == n for panel in panels)]
    parts = [f"<p>{len(runs)} finished runs.</p>"]
    if absent:
        numbers = ", ".join(map(str, absent))
        parts.append(f'<p class="gap">No grid was swept for figure {numbers}.</p>')
    for figure in figures:
        pictures = "".join(
            f"<figure>{draw_svg([draw], name=f'{figure.name}{n}', page=True)}</figure>"
            for n, draw in enumerate(figure.draws)
        )
        parts.append(
            f"<section><h2>{escape(figure.heading)}</h2>"
            f'<div class="panels">{pictures}</div><p>{escape(figure.caption)}</p>'
            + "".join(_numbers(panel) for panel in figure.panels)
            + "</section>"
        )
    table = _html_table(list(HEAD), rows)
    parts.append(f"<section><h2>Table 1. The paper's value beside ours</h2>{table}")
    parts.append(
        "<p>Our bytes are those of a real ticket without dictionaries; of a dense"
        " model, 4 per value.</p></section>"
    )
    for title, values in (
        ("Scores", [run.get("bleu_signature", "accuracy") for run in runs]),
        ("Versions", [_versions(run) for run in runs]),
    ):
        unique = "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(values))
        parts.append(f"<section><h2>{title}</h2><ul>{unique}</ul></section>")
    return _FRAME.replace("BODY", "\n".join(parts))


def _numbers(panel: Panel) -> str:
    rows = []
    for line in panel.lines:
        for keep, point in sorted(
            line.spreads(panel.measure).items(), key=lambda item: item[0] or 0
        ):
            kept = "dense" if keep is None else f"{keep:g}"
            rows.append([line.label, kept, format_spread(point), str(point.count)])
    head = ["model", "keep", MEASURES[panel.measure], "seeds"]
    gaps = "".join(f'<p class="gap">{escape(gap)}</p>' for gap in panel.missing)
    return (
        f"<details><summary>Numbers, {escape(panel.corpus)}</summary>"
        f"{_html_table(head, rows)}</details>{gaps}"
    )


def _html_table(head: List[str], rows: List[List[str]]) -> str:
    def line(cells: List[str], tag: str) -> str:
        return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)

    body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in rows)
    head_row = f"<thead><tr>{line(head, 'th')}</tr></thead>"
    return f'<div class="wide"><table>{head_row}<tbody>{body}</tbody></table></div>'


def _versions(run: Dict) -> str:
    versions = " ".join(f"{name} {v}" for name, v in run["versions"].items())
    return f"{versions}, on a {run['device'].upper()}"


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode())


_FRAME = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>One-layer random Transformers: results</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem;
  padding: 1rem; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
.panels { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { flex: 1 1 20rem; margin: 0; max-width: 36rem; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
td, th { padding: .3rem .6rem; text-align: left; border-bottom: 1px solid #8886; }
.gap { color: #b34700; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #16181c; } .gap { color: #ffab66; } }
</style></head><body>
<h1>One-layer random Transformers: results</h1>
BODY
</body></html>
"""
