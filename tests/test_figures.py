"""Figures, tables and the page, from results as a sweep writes them."""

import csv
import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from conftest import ROOT

from onelayer_lottery.cli import main

KEEPS = (0.1, 0.5, 0.9)
VERSIONS = {"python": "3.11", "torch": "2.13.0", "fairseq": "0.12.3.1"}


def result(id, seed, keep, score, measure="bleu"):
    masked = {"ticket": 900, "ticket_without_dictionaries": 800}
    dense = {"fp32": 4000, "int8": 1000}
    return {
        "id": id,
        "status": "finished",
        "seed": seed,
        measure: score,
        "bleu_signature": "nrefs:1|tok:13a",
        "bytes": dense if keep is None else masked,
        "weights": {"values": 1000} if keep is None else {"params": 500},
        "curve": [
            {"epoch": 1, "update": 100, "nll_loss": 6.0},
            {"epoch": 2, "update": 200, "nll_loss": 5.0 - seed / 10},
        ],
        "flips": [] if keep is None else [{"update": 100, "rate": 0.01 * seed}],
        "versions": VERSIONS,
        "device": "cpu",
    }


def write_runs(
    folder,
    *,
    figure=2,
    corpus="Multi30k",
    measure="bleu",
    keeps=KEEPS,
    leave_out=(),
):
    """A plan with a dense line and a masked one, three seeds each, and its results."""
    name = f"figure{figure}-{corpus}"
    runs, lines = [], []
    for variant, kept in (("dense", (None,)), ("one-layer", keeps)):
        for keep in kept:
            for seed in (1, 2, 3):
                id = f"{name}{variant}{keep}{seed}"
                runs.append({"id": id, "variant": variant, "seed": seed, "keep": keep})
                score = 30.0 + seed if keep is None else 20 + 10 * keep + seed
                if (variant, keep, seed) not in leave_out:
                    lines.append(result(id, seed, keep, score, measure))
    plan = {
        "name": name,
        "title": "Layers",
        "figure": figure,
        "corpus": corpus,
        "variants": [
            {"name": "dense", "label": "dense & trained", "table1": "iwslt/dense"},
            {"name": "one-layer", "label": "one layer", "table1": "iwslt/small"},
        ],
        "runs": runs,
    }
    (folder / "plans").mkdir(parents=True, exist_ok=True)
    (folder / "plans" / f"{name}.json").write_text(json.dumps(plan))
    with (folder / "results.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def plot(folder, tmp_path):
    out = tmp_path / "figures"
    assert main(["plot", str(folder), "-o", str(out)]) == 0
    return out


def svg_texts(text):
    return " ".join(ElementTree.fromstring(text).itertext())


def test_a_line_has_the_mean_of_the_seeds_and_one_deviation(tmp_path):
    from matplotlib import pyplot as plt

    from onelayer_lottery.experiments.plot.figures import plot_by_keep
    from onelayer_lottery.experiments.plot.panels import read_panels

    write_runs(tmp_path)
    (panel,) = read_panels(tmp_path)
    _, ax = plt.subplots()
    plot_by_keep(panel, ax)
    line, dense = ax.lines
    assert list(line.get_xdata()) == [10, 50, 90]
    assert list(line.get_ydata()) == [23, 27, 31]
    assert list(dense.get_ydata()) == [32, 32]
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(22)
    assert band[:, 1].max() == pytest.approx(32)
    plt.close("all")


def test_every_figure_of_the_paper_has_a_file_with_a_panel_per_corpus(tmp_path):
    runs = tmp_path / "runs"
    names = {
        **{2: "layers", 3: "embeddings", 4: "depth_width", 5: "init"},
        **{6: "qqp", 7: "mnli"},
    }
    for figure in names:
        measure = "bleu" if figure < 6 else "accuracy"
        write_runs(runs, figure=figure, corpus="IWSLT14", measure=measure)
    write_runs(runs, figure=2, corpus="WMT14")
    out = plot(runs, tmp_path)
    for figure, name in names.items():
        texts = svg_texts((out / f"figure{figure}_{name}.svg").read_text())
        assert "kept weights, %" in texts
        assert ("BLEU" if figure < 6 else "accuracy, %") in texts
    texts = svg_texts((out / "figure2_layers.svg").read_text())
    assert texts.index("WMT14") < texts.index("IWSLT14")
    for name in ("score_by_bytes", "figure2-WMT14_curves"):
        assert (out / f"{name}.svg").exists()
    texts = svg_texts((out / "score_by_bytes.svg").read_text())
    assert "dense & trained, int8" in texts


def test_variants_of_one_keep_are_compared_by_loss_and_flip_rate(tmp_path):
    from matplotlib import pyplot as plt

    from onelayer_lottery.experiments.plot.figures import plot_compared, plot_flips
    from onelayer_lottery.experiments.plot.panels import read_panels

    runs = tmp_path / "runs"
    write_runs(runs, figure=None, keeps=(0.5,))
    (panel,) = read_panels(runs)
    _, (left, right) = plt.subplots(1, 2)
    dense, masked = plot_compared(panel, left).lines
    assert list(dense.get_ydata()) == list(masked.get_ydata()) == [6.0, 4.8]
    (masked,) = plot_flips(panel, right).lines
    assert list(masked.get_ydata()) == [pytest.approx(2)]
    plt.close("all")
    out = plot(runs, tmp_path)
    texts = svg_texts((out / "figureNone-Multi30k_curves.svg").read_text())
    assert "validation nll_loss" in texts
    assert "mask bits flipped by an update, %" in texts
    assert not (out / "figureNone-Multi30k_by_keep.svg").exists()


def test_table_1_has_the_papers_value_beside_ours(tmp_path):
    runs = tmp_path / "runs"
    write_runs(runs)
    out = plot(runs, tmp_path)
    with (out / "table1.csv").open() as file:
        rows = {(r["task"], r["model"]): r for r in csv.DictReader(file)}
    assert len(rows) == 8
    row = rows["IWSLT14", "one-layer random small"]
    assert row["paper BLEU"] == "30.95 ± 0.12"
    assert row["our BLEU"] == "27.00 ± 1.00"
    assert (row["our corpus"], row["our seeds"]) == ("Multi30k", "3")
    assert (row["our bytes"], row["our params"]) == ("800", "500")
    assert row["ours, % of dense"] == "84"  # 27 of 32
    assert rows["WMT14", "Transformer base"]["our corpus"] == "not run"
    assert "| 30.95 ± 0.12 |" in (out / "table1.md").read_text()


def test_the_page_is_one_file_that_needs_nothing_else(tmp_path):
    runs = tmp_path / "runs"
    write_runs(runs)
    page = (plot(runs, tmp_path) / "report.html").read_text()
    assert not re.findall(r"(?:src|href)=\"(?!#)", page)
    assert not re.findall(r"<(?:script|link|img)|@import|url\((?!#)", page)
    assert page.count("<svg") == 3
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert "currentColor" in page
    assert "27.00 ± 1.00" in page
    assert "dense &amp; trained" in page
    assert "No grid was swept for figure 3, 4, 5, 6, 7" in page


def test_what_is_missing_is_said_in_the_figure_the_page_and_on_stderr(tmp_path, capsys):
    runs = tmp_path / "runs"
    write_runs(runs, leave_out={("one-layer", 0.9, 3)})
    out = plot(runs, tmp_path)
    gap = "one layer: 1 of 9 runs are missing: keep 0.9 seed 3"
    assert gap in capsys.readouterr().err
    assert gap in (out / "report.html").read_text()
    texts = svg_texts((out / "figure2_layers.svg").read_text())
    assert "missing: one layer: 1 of 9" in texts


def test_a_sweep_that_has_just_begun_can_be_plotted(tmp_path):
    runs = tmp_path / "runs"
    write_runs(runs)
    (runs / "results.jsonl").unlink()
    out = plot(runs, tmp_path)
    texts = svg_texts((out / "figure2_layers.svg").read_text())
    assert "no finished run yet" in texts


def test_figures_are_the_same_from_the_same_results(tmp_path):
    runs = tmp_path / "runs"
    write_runs(runs)
    first = (plot(runs, tmp_path) / "figure2_layers.svg").read_bytes()
    assert (plot(runs, tmp_path) / "figure2_layers.svg").read_bytes() == first


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert main(["plot", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    assert "holds no runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_damaged_line_is_named(tmp_path, capsys):
    runs = tmp_path / "runs"
    write_runs(runs)
    text = (runs / "results.jsonl").read_text()
    (runs / "results.jsonl").write_text("{oops\n" + text)
    assert main(["plot", str(runs), "-o", str(tmp_path / "out")]) == 1
    assert "results.jsonl, line 1 is not a result" in capsys.readouterr().err


def test_an_unknown_row_of_table_1_is_named(tmp_path, capsys):
    runs = tmp_path / "runs"
    write_runs(runs)
    plan = next((runs / "plans").glob("*.json"))
    plan.write_text(plan.read_text().replace("iwslt/small", "iwslt/smal"))
    assert main(["plot", str(runs), "-o", str(tmp_path / "out")]) == 1
    assert "table1 is 'iwslt/smal'; give one of iwslt/dense" in capsys.readouterr().err


def test_the_example_draws_losses_by_rate_with_the_lowest_between_rates(tmp_path):
    # Of width 64 the losses have their minimum at 2e-3, where a parabola has it.
    rates = {"width-64": (1e-3, 2.5e-3, 5e-3), "before-64": (1e-3, 5e-3)}
    with (tmp_path / "results.jsonl").open("w") as file:
        for variant, several in rates.items():
            for rate in several:
                run = result(f"{variant}-{rate}", 1, 0.5, None)
                run["variant"] = variant
                run["config"] = {"train": {"lr": str(rate)}}
                run["curve"][-1]["nll_loss"] = 4 + math.log(rate / 2e-3) ** 2
                file.write(json.dumps(run) + "\n")
    script = ROOT / "examples" / "learning" / "rates.py"
    words = [sys.executable, script, tmp_path, "-o", tmp_path / "out"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "| width 64 | 4.480 | 4.050 | 4.840 | 0.002 |" in done.stdout
    assert "| width 64 | 4.480 | 4.840 |  |" in done.stdout
    assert (tmp_path / "out" / "loss_by_rate.svg").is_file()
