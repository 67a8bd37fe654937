"""Sweeps through the real command: real trainings of a very small model."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SPLITS
from warm import warm

from onelayer_lottery.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BASE = """
  arch: transformer_onelayer_random_tiny
  encoder-embed-dim: 32
  encoder_ffn_embed_dim: 48
  decoder-embed-dim: 32
  --decoder-ffn-embed-dim: 48
  encoder-layers: 2
  decoder-layers: 2
  optimizer: adam
  lr: 2e-3
  criterion: label_smoothed_cross_entropy
  label-smoothing: 0.1
  max-tokens: 1200
  max-update: 4
  num-workers: 0
  log-interval: 1
"""
GRID = """
data: DATA
reference: REFERENCE
base: BASE
generate:
  beam: 2
  max-len-b: 12
  max-tokens: 2000
  remove-bpe: sentencepiece
"""


@pytest.fixture(scope="session")
def data(fairseq):
    """The binarised corpus, with its test references beside it."""
    folder = fairseq.folder / "data-bin"
    text = (fairseq.folder / "test.en").read_text("utf-8")
    (folder / "reference.en").write_text(text, "utf-8")
    return folder


@pytest.fixture
def grid(data, tmp_path):
    """Writes a grid file: the common part, then what is given."""

    def write(rest: str, *, base: str = "", name: str = "grid.yaml") -> Path:
        text = GRID.replace("DATA", str(data)).replace("REFERENCE", "reference.en")
        path = tmp_path / name
        path.write_text(text.replace("BASE", BASE + base) + rest, "utf-8")
        return path

    return write


def words(*arguments, python=sys.executable):
    return [str(python), "-m", "onelayer_lottery.cli", *map(str, arguments)]


def environment(**extra):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **extra}


def sweep(*arguments, status=0, python=None, **extra):
    done = subprocess.run(
        words("sweep", *arguments, python=python or warm("python")),
        capture_output=True,
        encoding="utf-8",
        env=environment(**extra),
        timeout=600,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def results(out):
    text = (out / "results.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def swept(data, tmp_path_factory):
    """A folder with the runs of a dense model and two that take its embeddings."""
    folder = tmp_path_factory.mktemp("swept")
    text = GRID.replace("DATA", str(data)).replace("REFERENCE", "reference.en")
    path = folder / "figure3.yaml"
    path.write_text(
        text.replace("BASE", BASE)
        + """
figure: 3
title: Imported embeddings
corpus: Grammar
variants:
  dense:
    arch: transformer
    share-decoder-input-output-embed: yes
    table1: iwslt/dense
  imported:
    label: embeddings of the dense model
    mask-keep: [0.3, 0.5]
    encoder-embed-path: ${dense}
    decoder-embed-path: ${dense}
    table1: iwslt/small
""",
        "utf-8",
    )
    out = folder / "runs"
    done = sweep(path, "--out", out, "--jobs", 2)
    return path, out, done


def test_every_run_leaves_one_line_with_all_that_was_measured(swept):
    _, out, done = swept
    lines = {
        (r["variant"], r["config"]["train"].get("mask-keep")): r for r in results(out)
    }
    assert set(lines) == {("dense", None), ("imported", "0.3"), ("imported", "0.5")}
    for line in lines.values():
        assert line["status"] == "finished"
        assert 0 <= line["bleu"] <= 100
        assert "tok:13a" in line["bleu_signature"]
        assert line["curve"][-1]["update"] == 4
        assert line["curve"][-1]["nll_loss"] > 1
        assert line["flips"] == []  # looked at every hundred updates
        assert line["seconds"]["train"] >= 0
        assert line["data"]["train"] == SPLITS["train"]
        assert {"torch", "fairseq", "python", "sacrebleu"} <= set(line["versions"])
    assert (
        lines["dense", None]["bytes"]["fp32"]
        == 4 * lines["dense", None]["bytes"]["int8"]
    )
    half = lines["imported", "0.5"]
    assert half["signature"].startswith(
        "arch:transformer_onelayer_random_tiny|keep:0.5"
    )
    ticket = out / half["folder"] / "model.ticket"
    assert half["bytes"]["ticket"] == ticket.stat().st_size
    assert half["bytes"]["ticket_without_dictionaries"] < half["bytes"]["ticket"]
    assert half["weights"]["kept"] * 2 == half["weights"]["positions"]
    assert "100% 3/3 runs" in done.stderr
    assert "ETA" in done.stderr


GENERATED = """S-1\tein zweiter satz steht hier .
T-1\ta second sentence is here .
H-1\t-0.5\ta second sentence is here .
D-1\t-0.5\ta second sentence is here.
S-0\tder erste satz ist lang .
T-0\tthe first sentence is long .
H-0\t-0.5\tthe first sentence is wrong .
D-0\t-0.5\tthe first sentence is wrong.
"""


def test_rounded_dense_models_are_put_beside_tickets_by_bytes(swept, tmp_path):
    script = ROOT / "examples" / "learning" / "by_bytes.py"
    call = [str(warm("python")), str(script), str(swept[1]), "-o", str(tmp_path)]
    done = subprocess.run(call, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    forms = [row[1] for row in rows]
    assert forms[:3] == ["fp32", "8 bits", "4 bits"]
    assert set(forms[3:]) == {"ticket"}
    sizes = [int(row[2].replace(",", "")) for row in rows]
    assert sizes[0] > 3 * sizes[1] > 4 * sizes[2]
    assert (tmp_path / "bleu_by_bytes.png").stat().st_size > 5000
    rounded = (tmp_path / "rounded.jsonl").read_text("utf-8")
    assert rounded.count("\n") == 2
    subprocess.run(call, capture_output=True, check=True)  # nothing is done again
    assert (tmp_path / "rounded.jsonl").read_text("utf-8") == rounded


def test_a_table_has_a_line_for_each_model_of_a_sweep(swept):
    script = ROOT / "examples" / "learning" / "table.py"
    call = [str(warm("python")), str(script), str(swept[1])]
    done = subprocess.run(call, capture_output=True, encoding="utf-8", check=True)
    lines = done.stdout.splitlines()[2:]
    losses = [min(p["nll_loss"] for p in run["curve"]) for run in results(swept[1])]
    assert len(lines) == 3
    for loss in losses:
        assert any(f" | 1 | {loss:.3f} | " in line for line in lines)
    call_by_keep = [*call, "--grid", "figure3", "--by-keep"]
    done = subprocess.run(call_by_keep, capture_output=True, text=True, check=True)
    head, _, dense, imported = done.stdout.splitlines()
    assert head == "| BLEU | whole | keep 0.3 | keep 0.5 |"
    assert re.fullmatch(r"\| dense \| [\d.]+ \|  \|  \|", dense)
    assert re.search(r"dense model \|  \| [\d.]+ \| [\d.]+ \|$", imported)
    empty = subprocess.run([*call[:2], "none"], capture_output=True, check=False)
    assert empty.returncode == 1
    assert b"none holds no runs" in empty.stderr


def test_bleu_is_of_the_generated_lines_in_the_order_of_the_test_set(tmp_path):
    import sacrebleu

    from onelayer_lottery.experiments.sweep.score import bleu_of

    log, reference = tmp_path / "generate.log", tmp_path / "reference.en"
    log.write_text(GENERATED)
    reference.write_text("the first sentence is long.\na second sentence is here.\n")
    found = bleu_of(log, 2, reference)
    expected = sacrebleu.corpus_bleu(
        ["the first sentence is wrong.", "a second sentence is here."],
        [["the first sentence is long.", "a second sentence is here."]],
    )
    assert found["bleu"] == pytest.approx(expected.score, abs=1e-3)
    assert 50 < found["bleu"] < 100
    assert "tok:13a" in found["bleu_signature"]
    tokens = bleu_of(log, 2, None)
    assert 50 < tokens["bleu"] < 100
    assert "tok:none" in tokens["bleu_signature"]


def test_sentences_that_were_not_translated_are_missed(tmp_path):
    from onelayer_lottery.errors import LotteryError
    from onelayer_lottery.experiments.sweep.score import bleu_of

    log, reference = tmp_path / "generate.log", tmp_path / "reference.en"
    log.write_text(GENERATED)
    with pytest.raises(LotteryError, match="2 of 3 sentences were translated"):
        bleu_of(log, 3, None)
    reference.write_text("one line\n")
    with pytest.raises(LotteryError, match="1 reference lines for 2 sentences"):
        bleu_of(log, 2, reference)


def test_flip_rates_are_read_by_update_from_the_lines_that_have_one():
    from onelayer_lottery.experiments.sweep.score import flips_of

    log = "\n".join(
        f"2026 | INFO | train_inner | {json.dumps(values)}"
        for values in (
            {"epoch": 1, "loss": "9.1", "num_updates": "80"},
            {"epoch": 1, "loss": "8", "flip_rate": "0.012", "num_updates": "100"},
            {"epoch": 1, "loss": "8", "flip_rate": None, "num_updates": "120"},
            {"epoch": 1, "loss": "8", "flip_rate": "0.004", "num_updates": "200"},
        )
    )
    assert flips_of(log) == [
        {"update": 100, "rate": 0.012},
        {"update": 200, "rate": 0.004},
    ]


def test_a_reader_that_has_seen_enough_gets_no_traceback(grid, tmp_path):
    path = grid(f"variants: {{a: {{}}}}\nseeds: {list(range(1, 200))}\n")
    command = words("sweep", path, "--out", tmp_path / "out", "--dry-run")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        encoding="utf-8",
    ) as process:
        assert process.stdout.readline().startswith("# ")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_a_curve_has_each_update_once_after_a_resumption():
    from onelayer_lottery.experiments.sweep.score import curve_of

    line = (
        'x | INFO | valid | {"epoch": %d, "valid_loss": "9", "valid_nll_loss": "%s",'
        ' "valid_num_updates": "%d"}\n'
    )
    log = line % (1, "8.5", 10) + line % (2, "7.9", 20) + line % (2, "7.5", 20)
    assert curve_of(log) == [
        {"epoch": 1, "update": 10, "loss": 9.0, "nll_loss": 8.5},
        {"epoch": 2, "update": 20, "loss": 9.0, "nll_loss": 7.5},
    ]


def test_seconds_before_an_interruption_count():
    from onelayer_lottery.experiments.sweep.score import wall_seconds

    inner = '{"num_updates": "%d", "train_wall": "9", "wall": "%d"}\n'
    epoch = (
        '{"train_num_updates": "40", "train_train_wall": "12", "train_wall": "17"}\n'
    )
    log = inner % (20, 50) + inner % (40, 100) + inner % (30, 7) + epoch
    assert wall_seconds(log) == 117
    assert wall_seconds("nothing") is None


def test_finished_runs_are_not_repeated_also_for_another_grid(swept, tmp_path):
    path, out, _ = swept
    other = tmp_path / "other.yaml"
    text = path.read_text("utf-8").replace("  dense:\n", "  baseline:\n")
    other.write_text(text.replace("${dense}", "${baseline}"), "utf-8")
    before = (out / "results.jsonl").read_bytes()
    done = sweep(other, "--out", out)
    assert "3 of 3 runs are done" in done.stderr
    assert (out / "results.jsonl").read_bytes() == before


def test_a_result_that_was_not_written_down_is_found_again(swept):
    path, out, _ = swept
    before = results(out)
    whole = (out / "results.jsonl").read_text("utf-8")
    cut = whole[: whole.rstrip("\n").rfind("\n") + 40]  # a kill within the last line
    (out / "results.jsonl").write_text(cut, "utf-8")
    sweep(path, "--out", out)
    assert results(out) == before


@pytest.mark.parametrize("left", ["nothing", "all but its checkpoint"])
def test_a_needed_run_whose_checkpoint_is_gone_runs_again(swept, tmp_path, left):
    path, first, _ = swept
    out = tmp_path / "runs"
    out.mkdir()
    dense, *_ = (r for r in results(first) if r["variant"] == "dense")
    (out / "results.jsonl").write_text(json.dumps(dense) + "\n", "utf-8")
    if left != "nothing":
        shutil.copytree(first / dense["folder"], out / dense["folder"])
        (out / dense["folder"] / "checkpoint_best.pt").unlink()
    done = sweep(path, "--out", out, "--jobs", 2)
    assert "dense-seed-1" in done.stderr
    assert "runs again: its checkpoint is needed, but missing" in done.stderr
    again = [r for r in results(out) if r["variant"] == "dense"]
    assert [r["bleu"] for r in again] == [dense["bleu"]] * 2
    assert [len(r["curve"]) for r in again] == [len(dense["curve"])] * 2
    imported = [r for r in results(out) if r["variant"] == "imported"]
    assert [r["status"] for r in imported] == ["finished"] * 2
    assert "runs again" not in sweep(path, "--out", out).stderr


def test_a_run_that_fails_when_run_again_keeps_its_result(swept, tmp_path):
    path, first, _ = swept
    out = tmp_path / "runs"
    dense, *_ = (r for r in results(first) if r["variant"] == "dense")
    (out / dense["folder"]).mkdir(parents=True)
    (out / dense["folder"] / "checkpoint_last.pt").mkdir()  # nothing can be saved here
    (out / "results.jsonl").write_text(json.dumps(dense) + "\n", "utf-8")
    done = sweep(path, "--out", out, status=1)
    assert "FAILED dense-seed-1" in done.stderr
    assert [r for r in results(out) if r["variant"] == "dense"] == [dense]


def test_a_copied_checkpoint_is_used_without_the_rest_of_its_run(swept, tmp_path):
    path, first, _ = swept
    out = tmp_path / "runs"
    dense, *_ = (r for r in results(first) if r["variant"] == "dense")
    (out / dense["folder"]).mkdir(parents=True)
    shutil.copy(first / dense["folder"] / "checkpoint_best.pt", out / dense["folder"])
    (out / "results.jsonl").write_text(json.dumps(dense) + "\n", "utf-8")
    done = sweep(path, "--out", out, "--jobs", 2)
    assert "runs again" not in done.stderr
    assert len(results(out)) == 3


def test_a_killed_sweep_ends_its_trainings_and_goes_on(grid, tmp_path):
    path = grid("variants: {slow: {}}\n", base="  save-interval-updates: 5\n")
    path.write_text(path.read_text().replace("max-update: 4", "max-update: 60"))
    out = tmp_path / "runs"
    process = subprocess.Popen(
        words("sweep", path, "--out", out),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment(),
    )
    deadline = time.time() + 300
    while not list(out.glob("*/checkpoint_last.pt")) and time.time() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    folder = next(out.glob("slow-*"))
    while alive(folder) and time.time() < deadline:
        time.sleep(0.05)
    assert not alive(folder)
    assert not (folder / "result.json").exists()
    sweep(path, "--out", out)
    assert [line["status"] for line in results(out)] == ["finished"]
    log = (folder / "train.log").read_text("utf-8")
    assert "Loaded checkpoint" in log
    assert results(out)[0]["curve"][-1]["update"] == 60


def alive(folder):
    """The processes of a run, of which none must outlive the sweep."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in path.read_bytes().decode("utf-8", "replace"):
                found.append(path)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_ends_its_trainings(grid, tmp_path, number):
    path = grid("variants: {slow: {}}\n")
    path.write_text(path.read_text().replace("max-update: 4", "max-update: 9000"))
    out = tmp_path / "runs"
    process = subprocess.Popen(
        words("sweep", path, "--out", out),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(),
        # A test run in the background would hand on that ctrl-C is to be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.time() + 300
    while not list(out.glob("*/train.log")) and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not alive(out)


def test_a_failed_run_is_recorded_and_does_not_stop_the_others(grid, tmp_path):
    path = grid(
        """
variants:
  broken: {encoder-embed-path: missing.pt}
  needy: {encoder-embed-path: "${broken}"}
  fine: {}
"""
    )
    out = tmp_path / "runs"
    done = sweep(path, "--out", out, status=1)
    assert "2 of 3 runs failed" in done.stderr
    lines = {line["variant"]: line for line in results(out)}
    assert lines["fine"]["status"] == "finished"
    assert "missing.pt" in lines["broken"]["reason"]
    assert "missing.pt" in Path(lines["broken"]["log"]).read_text("utf-8")
    assert "broken" in lines["needy"]["reason"]
    retried = sweep(path, "--out", out, status=1)
    assert "1 of 3 runs are done" in retried.stderr
    assert "FAILED broken" in retried.stderr


def test_a_second_sweep_in_the_same_folder_is_refused(grid, tmp_path):
    import fcntl

    out = tmp_path / "runs"
    out.mkdir()
    with (out / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = sweep(grid("variants: {one: {}}\n"), "--out", out, status=1)
    assert "in use by another sweep" in done.stderr
    assert not (out / "results.jsonl").exists()


def test_a_dry_run_prints_commands_that_run(grid, tmp_path):
    out = tmp_path / "runs"
    path = grid("variants: {one: {max-update: 1}}\nseeds: [7]\n")
    done = sweep(path, "--out", out, "--dry-run")
    assert not out.exists()
    commands = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(commands) == 2
    assert "--seed 7 --mask-seed 7" in commands[0]
    for command in commands:
        assert shlex.split(command)
        ran = subprocess.run(
            command, shell=True, capture_output=True, encoding="utf-8", check=False
        )
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("\nH-") == SPLITS["test"]


def test_submitit_runs_the_same_grid(grid, tmp_path):
    out = tmp_path / "runs"
    path = grid("variants: {one: {}}\n")
    sweep(
        path,
        *("--out", out, "--launcher", "local", "--launcher-option", "timeout_min=20"),
        python=sys.executable,  # submitit starts it again in the job
        # What a job of a cluster may see; no run must take it for its own.
        **{"MASTER_ADDR": "x", "MASTER_PORT": "1", "WORLD_SIZE": "8", "RANK": "3"},
    )
    assert [line["status"] for line in results(out)] == ["finished"]
    assert list((out / "jobs").glob("*_log.out"))


def refused(capsys, path, *arguments):
    status = main(["sweep", str(path), "--out", str(path.parent / "no"), *arguments])
    assert status == 1
    assert not (path.parent / "no").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("rest", "sentence"),
    [
        ("", "it has no variants: nothing to run"),
        ("variants: {}\n", "it has no variants: nothing to run"),
        ("variants: {a: {mask-keep: []}}\n", "the list of mask-keep is empty"),
        ("variants: {a: {}}\nseeds: []\n", "the list of seeds is empty"),
        ("variants: {a: {}}\nseeds: [x]\n", "seed 'x' is not a whole number"),
        ("variant: {a: {}}\n", "unknown key variant; known are figure"),
        ("variants: {a: {mask-kep: 0.5}}\n", "unrecognized arguments: --mask-kep"),
        ("variants: {a: {mask-keep: 0}}\n", "--mask-keep is 0.0: no weight would be"),
        ("variants: {a: {lr-scheduler: x}}\n", "argument --lr-scheduler: invalid"),
        (
            "variants: {a: {arch: transformer_onelayer_random_smal}}\n",
            "did you mean transformer_onelayer_random_small",
        ),
        ("variants: {a: {save-dir: x}}\n", "leave out save-dir"),
        ("variants: {a: {encoder-embed-path: '${b}'}}\n", "no variant above it"),
        ("variants: {a: {}, a: {}}\n", "a comes twice"),
        ("variants: [a]\n", "variants is not a mapping"),
        ("variants: {a: {table1: small}}\n", "table1 is small; give one of iwslt/"),
        ("variants: {a: {}}\nfigure: two\n", "figure is 'two'; give a whole number"),
        ("variants: {a: {}\n", "grid.yaml, line"),
    ],
)
def test_a_bad_grid_is_refused_before_anything_starts(grid, capsys, rest, sentence):
    assert sentence in refused(capsys, grid(rest))


def test_flags_of_generate_are_checked_too(grid, capsys):
    path = grid("variants: {a: {}}\n")
    path.write_text(path.read_text().replace("  beam: 2", "  beem: 2"))
    assert "generate: unrecognized arguments: --beem 2" in refused(capsys, path)


def test_missing_data_are_named(grid, capsys, tmp_path):
    path = grid("variants: {a: {}}\n")
    said = refused(capsys, path, "--data", str(tmp_path / "nothing"))
    assert "nothing is not a folder; prepare it with fairseq-preprocess" in said
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no binarised training data" in refused(capsys, path, "--data", str(empty))


def test_a_grid_that_is_not_there_is_named(capsys, tmp_path):
    assert "cannot read" in refused(capsys, tmp_path / "none.yaml")


def test_a_full_disk_loses_nothing(tmp_path):
    from onelayer_lottery.experiments.results import append_result, read_results

    append_result(tmp_path, {"id": "a"})
    code = f"""
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
from onelayer_lottery.experiments.results import append_result
append_result(Path({str(tmp_path)!r}), {{"id": "b", "long": "x" * 100}})
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        check=False,
    )
    assert "OSError" in done.stderr
    assert (tmp_path / "results.jsonl").read_text() == '{"id": "a"}\n'
    append_result(tmp_path, {"id": "c"})
    assert set(read_results(tmp_path)) == {"a", "c"}


OWN_MOUNTS = ["unshare", "--map-root-user", "--mount"]


@pytest.mark.skipif(
    subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode,
    reason="a small disk needs mounts of one's own",
)
def test_a_disk_that_fills_up_during_a_run_stops_the_sweep(grid, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    path = grid("variants: {a: {}, b: {mask-keep: 0.3}}\n")
    call = shlex.join(map(str, words("sweep", path, "--out", disk / "runs")))
    mount = f"mount -t tmpfs -o size=500k none {disk}"
    done = subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", f"{mount} && {call}"],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        check=False,
    )
    assert done.returncode == 1
    assert "No space left on device; fix that and run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_sweep_that_cannot_write_says_so(grid, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    path = grid("variants: {a: {}}\n")
    assert main(["sweep", str(path), "--out", str(tmp_path / "file" / "runs")]) == 1
    assert "cannot write in" in capsys.readouterr().err


GRIDS = [p for p in (ROOT / "examples").rglob("*.yaml") if p.parent.name != "lm"]


@pytest.mark.parametrize("path", sorted(GRIDS), ids=lambda p: p.stem)
def test_the_grids_of_the_examples_are_accepted(path, data, tmp_path, capsys):
    arguments = ["--data", str(data), "--out", str(tmp_path / "runs"), "--dry-run"]
    assert main(["sweep", str(path), *arguments]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert printed.count("fairseq_cli.train") == printed.count("\n# ") + 1
    assert "_onelayer_random_" in printed or "_reservoir_" in printed


def test_the_table_of_grids_counts_their_runs(data):
    from onelayer_lottery.experiments.sweep.grid import read_grid

    folder = ROOT / "examples" / "grids"
    table = (folder / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\S+)` \|.*\| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    grids = {str(p.relative_to(folder)) for p in folder.rglob("*.yaml")}
    assert {name for name, _, _ in rows} == grids
    seen = {}
    for name, runs, new in rows:
        grid = read_grid(folder / name, data=data)
        ids = {run.id for run in grid.runs}
        above = seen.setdefault(grid.corpus, set())
        assert (len(ids), len(ids - above)) == (int(runs), int(new)), name
        above |= ids
