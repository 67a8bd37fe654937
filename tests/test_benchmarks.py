"""The benchmark: it compares the same computation, and knows when it cannot tell."""

import json
import math
import subprocess
import sys

import pytest
import torch
from conftest import FAKE_DEVICES, ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from counting import counted
from gpu import (
    ARCHS,
    OTHERS,
    check_exactness,
    count_costs,
    count_table,
    dense_table,
    together,
)
from measure import TOO_NOISY, Row, interleave, linear_fit, median_interval
from models import batch, build_trainer
from rows import QUICK, ROWS
from ties import closest

from onelayer_lottery import load_ticket
from onelayer_lottery.core.selection import Selection

SIZE = QUICK.size
BENCHMARKS = ROOT / "benchmarks" / "README.md"


def run(*words, status=0):
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "speed.py"), *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode in (status if isinstance(status, tuple) else (status,)), (
        done.stderr[-3000:]
    )
    return done


def row(values, **given):
    return Row(**{"name": "row", "what": "", "target": 1.0, "values": values, **given})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_prints_a_table_and_writes_json_and_a_plot(tmp_path):
    done = run("--quick", "--out", tmp_path, status=(0, 1))  # 1: some row is too noisy
    found = json.loads((tmp_path / "speed.json").read_text())
    assert list(found["rows"]) == list(ROWS)
    last = done.stderr.splitlines()[-1]
    _, _, listed = last.partition("too noisy to tell: ")
    too_noisy = listed.partition(";")[0].split(", ")
    for name, record in found["rows"].items():
        assert f"| {name} | {record['what']} |" in done.stdout
        assert f"| {record['verdict']} |" in done.stdout
        noisy = record["verdict"] == TOO_NOISY
        assert noisy == (record["median"] is None)
        assert noisy == (name in too_noisy)
    assert found["rows"]["memory"]["verdict"] == TOO_NOISY  # of one round
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert {"tokens", "width", "depth"} <= set(found["scaling"])
    assert "R^2" in done.stdout
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["speed.json", "speed.png"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_profile_shows_the_masks_of_ours_only():
    lines = run("--quick", "--profile").stdout.splitlines()
    for part in ("mask writing", "straight-through backward"):
        dense, ours = next(li for li in lines if part in li).split("|")[2:4]
        assert dense.strip() == "0 ms, 0.0%"
        assert ours.strip() != "0 ms, 0.0%"
    for part in ("matrix products", "optimizer", "loss"):
        assert any(f"| {part}" in li for li in lines), part


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "4"], "--rounds is 4: too few to tell a difference from noise"),
        (["--only", "speed"], "invalid choice: 'speed'"),
        (["--out", ROOT / "setup.py"], "setup.py is a file; give a folder"),
    ],
)
def test_bad_options_end_with_a_sentence(words, message):
    done = run(*words, status=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("values", "options", "verdict"),
    [
        ([0.97, 0.98, 0.96, 0.97, 0.98, 0.97], {}, "met"),
        ([1.03, 1.02, 1.04, 1.03, 1.02, 1.03], {}, "missed"),
        ([0.97, 0.98, 1.06, 0.97, 0.90, 0.97], {}, TOO_NOISY),
        ([0.5, 0.5, 0.5, 0.5], {}, TOO_NOISY),  # too few rounds
        ([1.8, 1.9, 1.8, 1.7, 1.8], {"target": 1.5, "at_most": False}, "met"),
        ([1.8, 1.9, 1.8, 1.7, 1.8], {"target": 2.0, "at_most": False}, "missed"),
        ([1.8, 1.9, 1.8, 1.7, 1.8], {"target": 1.75, "at_most": False}, TOO_NOISY),
        ([1.01, 1.00, 0.99, 1.01, 1.02], {"noise_aside": True}, "met"),
        ([1.03, 1.02, 1.03, 1.04, 1.02], {"noise_aside": True}, "missed"),
        ([1.01, 0.90, 1.10, 0.95, 1.02], {"noise_aside": True}, TOO_NOISY),
        ([0.9, 0.9], {"noise_aside": True}, TOO_NOISY),
        ([1.0], {"exact": True}, "met"),
        ([1.01], {"exact": True}, "missed"),
    ],
)
def test_a_verdict_is_given_only_where_the_spread_allows_it(values, options, verdict):
    measured = row(values, **options)
    assert measured.verdict() == verdict
    assert measured.cells()[-1] == verdict
    assert (measured.record()["median"] is None) == (verdict == TOO_NOISY)
    assert (measured.cells()[3] == "-") == (verdict == TOO_NOISY)


@pytest.mark.parametrize("count", [6, 9, 20, 41])
def test_the_interval_is_the_shortest_of_95_percent(count):
    low, high = median_interval(range(count))
    dropped = int(low)
    assert high == count - 1 - dropped

    def chance_outside(drop):
        return 2 * sum(math.comb(count, i) for i in range(drop + 1)) / 2**count

    assert chance_outside(dropped) <= 0.05 < chance_outside(dropped + 1)


def test_rounds_are_interleaved_in_alternating_order():
    calls = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = interleave(works, 3, title="test", warm_up=1)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert [len(times) for times in seconds.values()] == [3, 3]


def test_a_straight_line_is_found():
    assert linear_fit([1, 2, 4], [5, 7, 11]) == pytest.approx((2, 3, 1))
    assert linear_fit([1, 2, 3, 4], [1, 16, 81, 256])[2] < 0.9


def test_a_full_sort_trains_the_very_same_masks():
    ours, sort = (build_trainer(kind, SIZE) for kind in ("ours", "sort"))
    first = ours.model.state_dict()["encoder.embed_tokens.masked.scores"].clone()
    for number in range(3):
        for trainer in (ours, sort):
            trainer.train_step([batch(128, SIZE, seed=number)])
    theirs = sort.model.state_dict()
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name
    assert not torch.equal(first, theirs["encoder.embed_tokens.masked.scores"])


def test_a_full_sort_is_done_in_every_forward_pass(monkeypatch):
    trainer = build_trainer("sort", SIZE)
    masks = {id(p) for p in trainer.model.parameters()}
    sorts = []
    sort = torch.Tensor.sort
    monkeypatch.setattr(
        torch.Tensor, "sort", lambda *w, **f: sorts.append(w) or sort(*w, **f)
    )
    trainer.train_step([batch(64, SIZE)] * 3)
    assert len(sorts) == 3 * len(masks)


def test_all_models_get_a_whole_batch_of_their_symbols():
    sample = batch(4096, SIZE)
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    assert source.numel() == target.numel() == sample["ntokens"] == 4096
    assert source.max() < SIZE.vocabulary[0]
    assert target.max() < SIZE.vocabulary[1]
    prev = sample["net_input"]["prev_output_tokens"]
    assert torch.equal(prev[:, 1:], target[:, :-1])


@pytest.mark.skipif(not FAKE_DEVICES, reason="torch cannot fake a device")
def test_the_cost_of_selecting_masks_is_what_the_readme_says():
    """On fake tensors of a CUDA device: nothing is computed."""
    assert count_table() in BENCHMARKS.read_text(encoding="utf-8")
    small = count_costs("small")["ours"]
    assert small.kernels <= 200
    assert small.peak <= 2 * small.scores


@pytest.mark.slow
@pytest.mark.skipif(not FAKE_DEVICES, reason="torch cannot count operations")
def test_the_cost_of_a_dense_step_is_what_the_readme_says():
    assert dense_table(["small"]) in _rows_of("small")


def _rows_of(name):
    """The README without the rows of other architectures."""
    others = tuple(f"| {other} |" for other in ARCHS if other != name)
    lines = BENCHMARKS.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith(others))


@pytest.mark.skipif(not FAKE_DEVICES, reason="torch cannot count operations")
def test_what_lies_between_values_is_moved_with_them():
    """A GPU reads whole sectors; of an expanded tensor one value."""

    def moved(tensor):
        return counted(lambda scores: scores[0].neg(), [tensor]).moved

    values = torch.zeros(64, 32, dtype=torch.int16)
    assert moved(values) == 2 * 4096
    assert moved(values[:, ::2]) == 4096 - 2 + 2048
    assert moved(values[:, ::32]) == 64 * 32 + 128
    assert moved(values[::2]) == 32 * 64 + 2048
    assert moved(values[:1, :1].expand(64, 32)) == 2 + 4096


@pytest.mark.skipif(not FAKE_DEVICES, reason="torch cannot count operations")
def test_operations_are_counted_with_their_bytes_and_peak():
    def run(scores):
        first = scores[0] * 2  # reads and writes 400 bytes
        del first
        return scores[0].view(10, 10) + torch.ones(10, 10)  # and with its ones 1,600

    cost = counted(run, [torch.zeros(100)])
    assert cost == (3, 800 + 400 + 1200, 800, 400)


# What computes nothing by itself: views, allocation, and names for other operations.
NO_KERNEL = {
    *("detach", "empty", "empty_like", "empty_strided", "expand", "narrow", "select"),
    *("split_with_sizes", "squeeze", "unsqueeze", "view", "chunk", "split"),
}
OTHER_NAMES = {"__and__", "__or__", "flatten", "reshape", "to"}


def _profiled(events):
    """How many operations compute among the outermost of torch's profiler."""
    total = 0
    for event in events:
        name = event.name.split("::")[-1]
        if name in OTHER_NAMES:
            total += _profiled(event.cpu_children)
        elif event.name.startswith("aten::"):
            total += name not in NO_KERNEL
    return total


@pytest.mark.skipif(not FAKE_DEVICES, reason="torch cannot count operations")
@pytest.mark.parametrize("kind", ["ours", "kthvalue", "topk", "sort"])
def test_the_profiler_of_torch_sees_as_many_operations(kind):
    scores = [torch.randn(shape) for shape in [(16, 32)] * 5 + [(100, 32)]]
    run = {"ours": together(scores).masks, **OTHERS}[kind]
    with torch.profiler.profile() as profile:
        run(scores)
    outermost = [event for event in profile.events() if event.cpu_parent is None]
    assert _profiled(outermost) == counted(run, scores).kernels


@pytest.mark.skipif(not FAKE_DEVICES, reason="torch has other NaN in bfloat16")
def test_masks_on_a_device_are_compared_with_those_of_the_cpu(monkeypatch):
    assert check_exactness("cpu") == []
    masks = Selection.masks

    def wrong(self, scores):
        return [mask.flip(0) for mask in masks(self, scores)]

    monkeypatch.setattr(Selection, "masks", wrong)
    assert "ours, random scores of torch.float32: the masks differ" in check_exactness(
        "cpu"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_gpu_script_runs_with_the_cpu_in_the_devices_place(tmp_path):
    words = ["--device", "cpu", "--quick", "--rounds", "5", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *words],
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "exactness on cpu: passed" in done.stdout
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["rows"]) == [
        f"toy-fp32-{kind}" for kind in ("ours", "kthvalue", "sort")
    ]


def test_a_machine_without_a_gpu_is_told_so():
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py")],
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 2
    assert "torch finds no CUDA device here" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([2.5, 2.4], "met"),
        ([2.4, 2.2], "too noisy to tell"),
        ([2.2, 2.1], "missed"),
    ],
)
def test_a_target_of_engines_inside_the_range_is_not_decided(values, verdict):
    import engines

    assert engines.verdict(values, ">=", 2.3) == verdict
    assert engines.verdict([-value for value in values], "<=", -2.3) == verdict


def test_the_search_for_ties_finds_fairseqs_translation():
    ticket = ROOT / "tests" / "golden" / "0.1.0" / "plain.ticket"
    engine = load_ticket(ticket, engine="fairseq")
    row = engine.encode("die")  # a beam of one finds something else
    (found,) = engine.search([row], beam=5)
    gap, step, total, symbols = closest(engine, row)
    assert symbols == found.symbols
    assert gap >= 0
    assert 1 <= step <= len(symbols)
    assert total < 0
