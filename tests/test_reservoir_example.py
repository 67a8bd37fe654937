"""examples/reservoir: its grid, its times, its table and plot."""

import json
import math
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from warm import warm

sys.path.insert(0, str(ROOT / "examples" / "reservoir"))

from curves import area, curve, seconds_to

FOLDER = ROOT / "examples" / "reservoir"


def test_an_area_keeps_the_last_value_to_the_end():
    points = [(0.0, 0.0), (10.0, 2.0), (20.0, 4.0)]
    assert area(points, 20.0) == 10 + 30
    assert area(points, 25.0) == 10 + 30 + 5 * 4


def test_a_curve_has_seconds_and_starts_with_the_training():
    found = {"curve": [{"update": u, "bleu": u / 10, "loss": 9.0} for u in (10, 20)]}
    assert curve(found, "bleu", 0.5) == [(0.0, 0.0), (5.0, 1.0), (10.0, 2.0)]
    assert curve(found, "loss", 0.5) == [(0.0, 9.0), (5.0, 9.0), (10.0, 9.0)]


def test_the_seconds_to_a_loss_lie_between_two_validations():
    points = [(10.0, 9.0), (20.0, 5.0), (30.0, 5.5)]
    assert seconds_to(points, 6.0) == 17.5
    assert seconds_to(points, 9.0) == 10.0
    assert seconds_to(points, 4.9) == math.inf


def result(variant, seed, bleu):
    points = [
        {"epoch": 1, "update": u, "bleu": bleu * u / 200, "loss": 5.0 - u / 200}
        for u in (100, 200)
    ]
    return {
        **{"id": f"{variant}{seed}", "status": "finished", "variant": variant},
        **{
            "seed": seed,
            "bleu": bleu,
            "curve": points,
            "weights": {"values": 1000},
            "bytes": {"fp32": 4000},
            "config": {"train": {}},
        },
    }


def run_curves(folder, *flags):
    words = [FOLDER / "curves.py", folder, folder / "times.json", "-o", folder, *flags]
    return subprocess.run(
        [str(warm("python")), *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )


def test_the_script_prints_a_table_and_draws_what_is_there(tmp_path):
    runs = [result("all-trained", 1, 8.0), result("all-trained", 2, 10.0)]
    runs.append(result("skip", 1, 9.0))
    lines = "".join(json.dumps(run) + "\n" for run in runs)
    (tmp_path / "results.jsonl").write_text(lines, encoding="utf-8")
    times = {"seconds": {"all-trained": 0.2, "skip": 0.1}}
    (tmp_path / "times.json").write_text(json.dumps(times), encoding="utf-8")
    done = run_curves(tmp_path)
    trained, skip = done.stdout.splitlines()[2:]
    assert trained.startswith(
        "| all trained | 2 | 9.00 ±1.41 | 4.000 ±0.000 | 0.200 | 40"
    )
    assert skip.startswith(
        "| transformer, backward skip | 1 | 9.00 | 4.000 | 0.100 | 20"
    )
    # Until second 40 its area is 270, that of the others 160 and 200.
    assert "| 20 | 1.000 |" in skip
    assert "| 40 | 0.667 ±0.105 |" in trained
    assert skip.endswith(" | 20 | 1,000 | 4,000 |")  # to the loss with which all end
    done = run_curves(tmp_path, "--loss", "4.25")
    assert "| seconds to a loss of 4.250 |" in done.stdout.splitlines()[0]
    trained, skip = done.stdout.splitlines()[2:]
    assert skip.endswith(" | 15 | 1,000 | 4,000 |")
    assert trained.endswith(" | 30 ±0 | 1,000 | 4,000 |")
    trained, _ = run_curves(tmp_path, "--loss", "3").stdout.splitlines()[2:]
    assert trained.endswith(" | not reached | 1,000 | 4,000 |")
    png = tmp_path / "bleu_and_loss_by_seconds.png"
    assert png.read_bytes().startswith(b"\x89PNG")


def test_language_models_have_bits_and_a_line_for_each_fraction_kept(tmp_path):
    point = {"epoch": 1, "update": 10, "loss": 3.0}
    base = {"status": "finished", "seed": 1, "curve": [point]}
    kept = {"masks": 2, "positions": 90, "trained": 0}
    runs = [
        {
            **{**base, "id": keep, "variant": "one-layer", "bits_per_character": 2.5},
            "weights": kept,
            "bytes": {"ticket_without_dictionaries": 12},
            "config": {"train": {"mask-keep": keep}},
        }
        for keep in ("0.5", "0.3")
    ]
    lines = "".join(json.dumps(run) + "\n" for run in runs)
    (tmp_path / "results.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "times.json").write_text('{"seconds": {"one-layer": 0.5}}')
    done = run_curves(tmp_path, "--grid", ROOT / "examples" / "lm" / "grid.yaml")
    first, second = done.stdout.splitlines()[2:]
    end = " | 1 | 2.500 | 3.000 | 0.500 | 5 | 1.000 | 5 | 90 | 12 |"
    assert first == f"| one-layer, keep 0.3{end}"
    assert second == f"| one-layer, keep 0.5{end}"
    assert (tmp_path / "loss_by_seconds.png").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_grid_is_accepted_and_its_variants_are_timed(fairseq, tmp_path):
    reference = (fairseq.folder / "test.en").read_text(encoding="utf-8")
    data = fairseq.folder / "data-bin"
    (data / "reference.en").write_text(reference, encoding="utf-8")
    grid, out = FOLDER / "grid.yaml", tmp_path / "runs"
    done = fairseq.run(
        *("onelayer-lottery", "sweep", grid, "--data", data, "--out", out, "--dry-run"),
        user_dir=False,
    )
    assert done.out.count("fairseq_cli.train") == 18
    times = tmp_path / "times.json"
    words = [FOLDER / "times.py", data, "-o", times, "--rounds", 2]
    subprocess.run([str(warm("python")), *map(str, words)], check=True, timeout=500)
    found = json.loads(times.read_text())
    names = re.findall(r"^  ([a-z-]+): \{", grid.read_text(), re.MULTILINE)
    assert list(found["seconds"]) == names
    assert all(seconds > 0 for seconds in found["seconds"].values())
