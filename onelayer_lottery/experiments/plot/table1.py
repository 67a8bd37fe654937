"""The paper's Table 1 with our values beside it."""

from __future__ import annotations

import csv
import io
from typing import Any, Dict, List, NamedTuple, Optional

from onelayer_lottery.errors import LotteryError, quote
from onelayer_lottery.experiments.plot.panels import Line, Panel, Spread, spread


class Row(NamedTuple):
    """A row of the paper's table, and its name in a grid."""

    key: str
    task: str
    model: str
    bleu: float
    deviation: Optional[float]
    memory: int  # MB, as printed
    kept: int  # %
    params: int  # million


PAPER = (
    Row("iwslt/dense", "IWSLT14", "Transformer small", 34.66, 0.11, 148, 100, 39),
    Row("iwslt/small", "IWSLT14", "one-layer random small", 30.95, 0.12, 28, 50, 7),
    Row("iwslt/wide", "IWSLT14", "one-layer random wide", 34.14, 0.08, 71, 50, 18),
    Row("iwslt/deep", "IWSLT14", "one-layer random deep", 31.51, 0.10, 29, 50, 7),
    Row("wmt/dense", "WMT14", "Transformer base", 27.51, None, 328, 100, 86),
    Row("wmt/base", "WMT14", "one-layer random base", 20.35, None, 96, 50, 25),
    Row("wmt/wider", "WMT14", "one-layer random wider", 25.24, None, 227, 50, 57),
    Row("wmt/deeper", "WMT14", "one-layer random deeper", 21.76, None, 98, 50, 25),
)
HEAD = (
    *("task", "model", "kept, %", "paper BLEU", "paper memory, MB"),
    *("paper params, M", "our corpus", "our BLEU", "our seeds", "our bytes"),
    *("our params", "paper, % of dense", "ours, % of dense"),
)
_HALF = 0.5  # the fraction kept in every masked row


def table_rows(panels: List[Panel]) -> List[List[str]]:
    """Return cells under ``HEAD``: each row of the paper once per corpus of ours."""
    ours: Dict[str, Dict[str, List[Dict[str, Any]]]] = {row.key: {} for row in PAPER}
    for panel in panels:
        for line in panel.lines:
            if line.table1 is None:
                continue
            if line.table1 not in ours:
                raise LotteryError(
                    f"plan {panel.name}: table1 is {quote(line.table1)}; give one of"
                    f" {', '.join(ours)}"
                )
            ours[line.table1].setdefault(panel.corpus, []).extend(_runs(line))
    rows = []
    for paper in PAPER:
        corpora = {c: runs for c, runs in ours[paper.key].items() if runs}
        for corpus, runs in (corpora or {"": []}).items():
            dense = ours[f"{paper.key.split('/')[0]}/dense"].get(corpus, [])
            rows.append(_cells(paper, corpus, _unique(runs), _unique(dense)))
    return rows


def as_markdown(rows: List[List[str]]) -> str:
    lines = [list(HEAD), ["---"] * len(HEAD), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def as_csv(rows: List[List[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([HEAD, *rows])
    return out.getvalue()


def format_spread(point: Spread) -> str:
    if point.count == 1:
        return f"{point.mean:.2f}"
    return f"{point.mean:.2f} ± {point.deviation:.2f}"


def _cells(
    paper: Row, corpus: str, runs: List[Dict[str, Any]], dense: List[Dict[str, Any]]
) -> List[str]:
    printed = f"{paper.bleu:.2f}" + (f" ± {paper.deviation}" if paper.deviation else "")
    baseline = next(r for r in PAPER if r.key == f"{paper.key.split('/')[0]}/dense")
    cells = [
        *(paper.task, paper.model, str(paper.kept), printed),
        *(str(paper.memory), str(paper.params)),
    ]
    share = f"{paper.bleu / baseline.bleu:.0%}".rstrip("%")
    if not runs:
        return [*cells, "not run", "", "", "", "", share, ""]
    bleu = spread([run["bleu"] for run in runs])
    size = runs[0]["bytes"]
    weights = runs[0]["weights"]
    against = spread([run["bleu"] for run in dense]).mean if dense else 0
    return [
        *cells,
        corpus,
        format_spread(bleu),
        str(bleu.count),
        f"{size.get('fp32') or size['ticket_without_dictionaries']:,}",
        f"{weights.get('values') or weights['params']:,}",
        share,
        f"{100 * bleu.mean / against:.0f}" if against else "",
    ]


def _runs(line: Line) -> List[Dict[str, Any]]:
    wanted = line.runs.get(None, []) if line.dense else line.runs.get(_HALF, [])
    return [run for run in wanted if "bleu" in run]


def _unique(runs: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return list({run["id"]: run for run in runs}.values())
