"""Flags that make masks learn better, through the real commands."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, Fairseq
from warm import warm

from onelayer_lottery.checkpoint.reading import load_checkpoint, save_checkpoint
from onelayer_lottery.cli import main
from onelayer_lottery.core.fitting import fit
from onelayer_lottery.core.frozen import frozen_weight
from onelayer_lottery.core.modules import first_scales

sys.path.insert(0, str(ROOT / "examples" / "learning"))
from quantise import rounded

SIGNED = ("--mask-init", "signed-constant")


@pytest.fixture(scope="module")
def dense(fairseq):
    """A checkpoint of a stock model with the shape that the tests train."""
    fairseq.train(
        *("data-bin", "to-start-from", "--arch", "transformer", "--max-update", 2),
        *("--encoder-attention-heads", 4, "--decoder-attention-heads", 4),
        "--share-decoder-input-output-embed",
    )
    return fairseq.folder / "to-start-from" / "checkpoint_last.pt"


def test_masks_scales_and_norms_start_from_a_trained_model(fairseq, dense):
    moved = dense.with_name("moved.pt")
    moved.write_bytes(dense.read_bytes())
    flags = ["--mask-start", moved, "--mask-scale", "row", "--mask-train", "norm,bias"]
    flags += [*SIGNED, "--lr", 0, "--mask-preset", "paper-text"]
    fairseq.train("data-bin", "started", *flags, "--max-update", 1)
    path = fairseq.folder / "started" / "checkpoint_last.pt"
    trained, ours = (load_checkpoint(p)["model"] for p in (dense, path))
    for layer in ("encoder.layers.1.fc1", "decoder.layers.0.encoder_attn.k_proj"):
        weight = trained[f"{layer}.weight"]
        shape = tuple(weight.shape)
        role = layer.replace(".1.", ".*.").replace(".0.", ".*.")
        frozen = frozen_weight(1, role, shape=shape, init="signed-constant", keep=0.5)
        scales = first_scales(shape, "row")
        scores = fit(weight, frozen, keep=0.5, scales=scales)
        assert torch.equal(ours[f"{layer}.masked.scores"], scores)
        assert torch.equal(ours[f"{layer}.masked.scales.0"], scales[0])
        assert torch.equal(ours[f"{layer}.bias"], trained[f"{layer}.bias"])
    moved.unlink()
    fairseq.train("data-bin", "started", *flags, "--max-update", 2)
    done = fairseq.generate("data-bin", "started/checkpoint_last.pt")
    assert done.lines("H")


def test_signed_masks_are_trained_and_translate_from_their_ticket(fairseq):
    flags = ["--mask-method", "signed", "--mask-preset", "best"]
    fairseq.train("data-bin", "signed", *flags, "--max-update", 3)
    done = fairseq.train("data-bin", "signed", "--max-update", 4, status=None)
    assert "--mask-method signed, this model has" in done.log
    path = fairseq.folder / "signed" / "checkpoint_last.pt"
    ticket = path.with_name("signed.ticket")
    data = str(fairseq.folder / "data-bin")
    assert main(["ticket", str(path), str(ticket), "--data", data]) == 0
    assert main(["restore", str(ticket), str(path.with_name("again.pt"))]) == 0
    theirs = fairseq.generate("data-bin", path).lines("H")
    assert fairseq.generate("data-bin", path.with_name("again.pt")).lines("H") == theirs


def test_the_best_preset_is_known_by_its_flags(fairseq):
    flags = ["--mask-preset", "best", "--mask-gain", 0.7, "--disable-validation"]
    done = fairseq.train("data-bin", "best", *flags, "--max-update", 3)
    assert "init:signed-constant|" in done.log
    assert "gain:0.7|" in done.log  # a flag that is given wins


def test_the_preset_from_dense_starts_from_a_model(fairseq, dense):
    flags = ["--mask-preset", "best-from-dense", "--mask-start", dense]
    done = fairseq.train("data-bin", "best-from-dense", *flags, "--max-update", 1)
    assert "init:signed-constant|" in done.log
    assert "method:signed|" in done.log
    path = fairseq.folder / "best-from-dense" / "checkpoint_last.pt"
    assert "encoder.layers.0.fc1.masked.scales.0" in load_checkpoint(path)["model"]


def script_of(name, *words):
    path = ROOT / "examples" / "learning" / f"{name}.py"
    return subprocess.run(
        [str(warm("python")), path, *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_a_dense_model_is_rounded_to_few_bits(fairseq, dense):
    rounded = fairseq.folder / "rounded.pt"
    done = script_of("quantise", dense, "--bits", 4, "--group", 16, "-o", rounded)
    assert done.returncode == 0, done.stderr
    theirs, ours = (load_checkpoint(path)["model"] for path in (dense, rounded))
    name = "encoder.layers.0.fc1.weight"
    runs = ours[name].view(-1, 16)
    assert all(len(run.unique()) <= 15 for run in runs)
    step = runs.abs().amax(1, keepdim=True) / 7
    assert ((runs - theirs[name].view(-1, 16)).abs() <= 0.51 * step).all()
    stored = {t.data_ptr(): t for t in theirs.values()}.values()
    matrices = sum(t.numel() for t in stored if t.dim() == 2)
    rest = sum(t.numel() for t in stored if t.dim() != 2)
    expected = matrices // 2 + matrices // 16 * 2 + 4 * rest
    assert done.stdout.split() == ["4", "bits:", f"{expected:,}", "bytes"]
    assert fairseq.generate("data-bin", rounded).lines("H")
    again = script_of("quantise", dense, "--bits", 4, "-o", rounded)
    assert again.returncode == 1
    assert "rounded.pt exists, pass --force" in again.stderr


def test_ternary_weights_lie_near_a_matrix_and_round_to_themselves():
    matrix = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    values, size = rounded(matrix, bits=2, group=0)
    assert all(len(row.unique()) == 3 for row in values)
    assert size == 6 * 50 // 5 + 2 * 6
    # Normal weights lose a fifth of their power in three values, a third in two.
    assert 0.15 < ((values - matrix).pow(2).sum() / matrix.pow(2).sum()).item() < 0.25
    assert torch.equal(rounded(values, bits=2, group=0)[0], values)


def test_a_dense_model_is_trained_on_with_few_bits(fairseq, dense, monkeypatch):
    monkeypatch.setenv("PYTHON", str(warm("python")))
    data, out = fairseq.folder / "data-bin", fairseq.folder / "low-bits"
    reference = data / "reference.en"
    reference.write_bytes((fairseq.folder / "test.en").read_bytes())
    flags = ["--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 48]
    flags += ["--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 48]
    flags += ["--encoder-layers", 2, "--decoder-layers", 2, "--warmup-updates", 1]
    script = ROOT / "examples" / "learning" / "low_bits.sh"
    words = [data, dense, 2, 1, out, *flags, "--max-update", 3]
    done = fairseq.run(script, *words, user_dir=False, start=Path)
    assert re.fullmatch(r"nll_loss [0-9.]+\n[0-9.]+\n", done.out)
    # The trained weights, rounded, are the model that translates.
    state = load_checkpoint(out / "checkpoint_best.pt")
    original = ".parametrizations.weight.original"
    tensors = state["model"].items()
    state["model"] = {name.replace(original, ".weight"): t for name, t in tensors}
    first = load_checkpoint(dense)["model"]
    assert state["model"].keys() == first.keys()
    assert not any(
        torch.equal(tensor, first[name])
        for name, tensor in state["model"].items()
        if tensor.dim() == 2
    )
    state["cfg"]["model"].arch = state["cfg"]["model"]._name = "transformer"
    save_checkpoint(state, out / "stock.pt", force=False)
    quantised = script_of("quantise", out / "stock.pt", "--bits", 2, "-o", out / "2.pt")
    assert quantised.returncode == 0, quantised.stderr
    theirs = fairseq.generate("data-bin", out / "2.pt")
    flags = ["--user-dir", script.with_suffix("")]
    ours = fairseq.generate(
        "data-bin", out / "checkpoint_best.pt", *flags, user_dir=False
    )
    assert ours.lines("H") == theirs.lines("H") != []


def test_targets_become_the_translations_of_a_teacher(fairseq, dense):
    data, out = fairseq.folder / "data-bin", fairseq.folder / "data-of-a-teacher"
    done = script_of(
        "translate_targets", data, "--teacher", dense, "--out", out, "--beam", 2
    )
    assert done.returncode == 0, done.stderr
    flags = ["--gen-subset", "train", "--beam", 2, "--max-tokens", 6000]
    flags += ["--max-len-a", 1.2, "--max-len-b", 10]
    theirs = fairseq.generate(data, dense, *flags).lines("H")
    targets = fairseq.generate(out, dense, *flags).lines("T")
    assert len(theirs) > 10
    expected, found = (
        {line[2:].split("\t")[0]: line.split("\t")[-1] for line in lines}
        for lines in (theirs, targets)
    )
    assert found == expected
    for name in ("train.de-en.de.bin", "valid.de-en.en.bin", "dict.en.txt"):
        assert (out / name).read_bytes() == (data / name).read_bytes()
    fairseq.train(out, "from-translations", "--max-update", 1)


def test_what_branches_add_to_the_residual_is_measured(fairseq, trained):
    data = fairseq.folder / "data-bin"
    done = script_of("residuals", trained / "checkpoint_best.pt", data)
    assert done.returncode == 0, done.stderr
    rows = [row.split(" | ") for row in done.stdout.splitlines()[2:]]
    assert len(rows) == 2 * (2 + 3)  # branches of a layer, at the start and trained
    ratios = [[float(cell.strip(" |")) for cell in row[1:]] for row in rows]
    assert all(len(row) == 2 and min(row) > 0 for row in ratios)
    assert ratios[0::2] != ratios[1::2]


def test_rejected_methods_can_be_tried_again(fairseq, trained, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHON", str(warm("python")))
    # Another model in fairseq's default folder: the script must not resume from it.
    last = tmp_path / "checkpoints" / "checkpoint_last.pt"
    last.parent.mkdir()
    shutil.copy(trained / "checkpoint_last.pt", last)
    as_ever = "mean:0"
    methods = ("coats:2", "frozen:0.5", "global", "mean:0.5", "holding:0.5", as_ever)
    losses = {}
    for method in methods:
        done = Fairseq(tmp_path).run(
            ROOT / "examples" / "learning" / "rejected_methods.sh",
            *(
                fairseq.folder / "data-bin",
                method,
                1,
                "--max-update",
                3,
                "--warmup-updates",
                0,
            ),
            user_dir=False,
        )
        assert f"with masks by {method}" in done.out
        found = re.findall(r"'valid' subset .* nll_loss ([0-9.]+) ", done.log)
        losses[method] = float(found[-1])
    assert len(set(losses.values())) == len(methods), losses


def test_what_cannot_be_distilled_is_said_in_a_sentence(fairseq, dense):
    data, out = fairseq.folder / "data-bin", fairseq.folder / "never-distilled"
    for words, sentence in (
        (
            (data, "--teacher", "none.pt", "--out", out),
            "--teacher none.pt is not a file",
        ),
        ((data, "--teacher", dense, "--out", data), "exists: give a new folder"),
        ((out.parent, "--teacher", dense, "--out", out), "has no train.SOURCE-TARGET"),
    ):
        done = script_of("translate_targets", *words)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--mask-start", "none.pt"), "--mask-start: none.pt is not a file"),
        (
            ("--mask-start", "trained/checkpoint_last.pt"),
            "--mask-start: the checkpoint has no encoder.embed_tokens.weight",
        ),
        (
            ("--mask-start", "to-start-from/checkpoint_last.pt", "--encoder-layers", 3),
            "--mask-start: the checkpoint has no encoder.layers.2.",
        ),
        (
            (
                "--mask-start",
                "to-start-from/checkpoint_last.pt",
                "--encoder-ffn-embed-dim",
                64,
            ),
            "has the shape (48, 32), this model's (64, 32); give one of a dense model",
        ),
        (
            ("--mask-preset", "best-from-dense"),
            "--mask-preset best-from-dense starts from a trained dense model: give its",
        ),
        (("--mask-anneal", 1.5), "--mask-anneal is 1.5; give a part of the training"),
        (
            ("--mask-anneal", 0.5, "--max-update", 0, "--max-epoch", 1),
            "--mask-anneal 0.5 is a part of --max-update, which is not given",
        ),
    ],
)
def test_bad_flags_are_one_sentence(fairseq, trained, dense, flags, sentence):
    done = fairseq.train("data-bin", "never", *flags, status=None)
    assert done.status != 0
    assert sentence in done.log
    assert "Traceback" not in done.log


def test_a_teacher_with_code_in_its_flags_is_refused(fairseq, dense, tmp_path):
    state = load_checkpoint(dense)
    pwned = tmp_path / "PWNED"
    code = f"[__import__('os').system('touch {pwned}'), 100]"
    state["cfg"]["model"].adaptive_softmax_cutoff = code
    torch.save(state, tmp_path / "hostile.pt")
    flags = ("--criterion", "distillation", "--teacher", tmp_path / "hostile.pt")
    done = fairseq.train("data-bin", tmp_path / "never", *flags, status=1)
    assert (
        "--teacher: it cannot be used: its flag 'adaptive_softmax_cutoff'" in done.log
    )
    assert "Traceback" not in done.log
    assert not pwned.exists()


def test_a_training_that_breaks_down_stops_and_names_the_tensor(fairseq, tmp_path):
    """Without epsilon Adam divides 0 by 0 where a gradient is zero: a padding row."""
    flags = ("--adam-eps", 0, "--max-update", 3)
    done = fairseq.train("data-bin", tmp_path / "broken", *flags, status=1)
    assert "encoder.embed_tokens.masked.scores has a NaN or infinity at update 1" in (
        done.log
    )
    assert "Traceback" not in done.log


@pytest.mark.parametrize(
    "flags", [("--mask-start",), ("--criterion", "distillation", "--teacher")]
)
def test_a_model_of_other_dictionaries_is_refused(fairseq, dense, flags, tmp_path):
    data = tmp_path / "other-order"
    shutil.copytree(fairseq.folder / "data-bin", data)
    first, second, *rest = (data / "dict.en.txt").read_text("utf-8").splitlines()
    lines = [second, first, *rest]
    (data / "dict.en.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    done = fairseq.train(data, tmp_path / "never", *flags, dense, status=None)
    assert done.status != 0
    assert f"{dense} was trained with another dictionary of the decoder" in done.log
    assert flags[-1] in done.log
    assert "Traceback" not in done.log
    done = fairseq.train("data-bin", tmp_path / "same", *flags, dense)
    assert "taken in the task's order" not in done.log
