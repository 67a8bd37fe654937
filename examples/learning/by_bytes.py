"""BLEU against bytes: tickets beside dense models in 32, 8 and 4 bits.

    python examples/learning/by_bytes.py RUNS -o examples/learning

RUNS is the folder of a sweep of one grid, such as headline.yaml. Every dense model
of it is rounded (quantise.py) and translates the test data with the command of its run;
what came of it is kept in OUT/rounded.jsonl, to be done once. Prints a table and
draws OUT/bleu_by_bytes.png. Bytes are without dictionaries.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from quantise import rounded_model
from table import with_deviation

from onelayer_lottery.checkpoint.reading import load_checkpoint, save_checkpoint
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.plot.panels import read_panels, spread
from onelayer_lottery.experiments.sweep.score import bleu_of

BITS = (8, 4)
MARKERS = {"fp32": "s", "8 bits": "o", "4 bits": "^", "ticket": "*"}


class Point(NamedTuple):
    """Models of one kind with all their seeds."""

    label: str
    form: str  # fp32, 8 bits, 4 bits or ticket
    bytes: float
    bleus: List[float]


def rounded_runs(runs: Path, ids: List[str], record: Path) -> List[Dict[str, Any]]:
    """BLEU and bytes of every dense run at every number of bits."""
    lines = record.read_text("utf-8").splitlines() if record.exists() else []
    found = [json.loads(line) for line in lines]
    done = {(row["id"], row["bits"]) for row in found}
    for run in ids:
        for bits in BITS:
            if (run, bits) not in done:
                folder = next(runs.glob(f"*-{run}"), None)
                if folder is None:
                    sys.exit(
                        f"{runs} has no folder of the run {run}: its model is gone"
                    )
                found.append({"id": run, "bits": bits, **translate(folder, bits)})
                with record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found[-1]) + "\n")
    return found


def translate(run: Path, bits: int) -> Dict[str, Any]:
    """Round the model of a run, translate with it, and score that."""
    task = json.loads((run / "task.json").read_text("utf-8"))
    state = load_checkpoint(run / task["checkpoint"])
    state["model"], size = rounded_model(state["model"], bits, 0)
    state["last_optimizer_state"] = None
    reference = Path(task["reference"])
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "rounded.pt"), Path(folder, "log")
        save_checkpoint(state, path, force=False)
        words = task["steps"]["generate"]
        words[words.index("--path") + 1] = str(path)
        with log.open("wb") as file:
            subprocess.run(words, stdout=file, stderr=subprocess.DEVNULL, check=True)
        count = len(reference.read_text("utf-8").splitlines())
        return {"bytes": size, "bleu": bleu_of(log, count, reference)["bleu"]}


def points_of(runs: Path, out: Path) -> List[Point]:
    points = []
    for line in read_panels(runs)[0].lines:
        for keep, results in line.runs.items():
            form = "fp32" if keep is None else "ticket"
            kind = "fp32" if keep is None else "ticket_without_dictionaries"
            if not results:
                continue
            sizes = [result["bytes"][kind] for result in results]
            bleus = [result["bleu"] for result in results]
            points.append(Point(line.label, form, spread(sizes).mean, bleus))
            if keep is None:
                ids = [result["id"] for result in results]
                rounded = rounded_runs(runs, ids, out / "rounded.jsonl")
                for bits in BITS:
                    rows = [r for r in rounded if r["id"] in ids and r["bits"] == bits]
                    size = spread([row["bytes"] for row in rows]).mean
                    bleus = [row["bleu"] for row in rows]
                    points.append(Point(line.label, f"{bits} bits", size, bleus))
    return points


def table(points: List[Point]) -> str:
    rows = [
        "| model | as | bytes | BLEU | seeds | of dense |",
        "|---|---|---|---|---|---|",
    ]
    dense = spread(points[0].bleus).mean
    for point in points:
        bleu = spread(point.bleus)
        rows.append(
            f"| {point.label} | {point.form} | {point.bytes:,.0f} |"
            f" {with_deviation(point.bleus, 2)} | {bleu.count} |"
            f" {bleu.mean / dense:.1%} |"
        )
    return "\n".join(rows)


def draw(points: List[Point], path: Path) -> None:
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq asks for more
    figure, axes = plt.subplots(figsize=(8.4, 4.2))
    labels = list(dict.fromkeys(point.label for point in points))
    for point in points:
        bleu = spread(point.bleus)
        axes.errorbar(
            point.bytes / 1e6,
            bleu.mean,
            yerr=bleu.deviation,
            marker=MARKERS[point.form],
            markersize=10 if point.form == "ticket" else 6,
            color=f"C{labels.index(point.label)}",
            linestyle="none",
            label=point.label
            if point.form == "ticket"
            else f"{point.label}, {point.form}",
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("bytes of the model without dictionaries, MB")
    axes.set_ylabel("BLEU on test 2016")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("."))
    args = parser.parse_args()
    try:
        points = points_of(args.runs, args.out)
    except LotteryError as error:
        sys.exit(str(error))
    print(table(points))
    draw(points, args.out / "bleu_by_bytes.png")


if __name__ == "__main__":
    main()
