"""Averaging checkpoints by the command, on files of the form that fairseq writes."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from stock import build_tiny

from onelayer_lottery.cli import main
from onelayer_lottery.planting.contents import frozen_tensors, masked_weights


def write(path, model, **more):
    state = {
        "args": None,
        "cfg": {"model": Namespace(arch="transformer_onelayer_random_tiny")},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 3, "best_loss": np.float64(2.5)}],
        "last_optimizer_state": {"exp_avg": torch.zeros(1000)},
        "extra_state": {"epoch": 1},
        **more,
    }
    torch.save(state, path)
    return path


def jitter(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture
def models():
    return [jitter(build_tiny(mask_train="norm"), seed) for seed in range(3)]


@pytest.fixture
def paths(models, tmp_path):
    return [
        str(write(tmp_path / f"checkpoint{number}.pt", model))
        for number, model in enumerate(models, start=9)
    ]


def load(path):
    state = torch.load(path)  # as fairseq does: torch's safety check must pass
    model = build_tiny(mask_train="norm")
    model.load_state_dict(state["model"])
    return state, model


def test_scores_are_averaged_and_frozen_weights_stay_to_the_bit(
    models, paths, tmp_path
):
    out = tmp_path / "mean.pt"
    assert main(["average", *paths, "-o", str(out)]) == 0
    state, mean = load(out)
    for (name, ours), *theirs in zip(
        masked_weights(mean), *map(masked_weights, models)
    ):
        expected = torch.stack([weight.scores for _, weight in theirs]).mean(0)
        torch.testing.assert_close(ours.scores, expected, rtol=1e-6, atol=1e-7), name
    for ours, original in zip(frozen_tensors(mean), frozen_tensors(models[0])):
        assert torch.equal(ours, original)
    norm = "encoder.layers.0.final_layer_norm.weight"
    expected = torch.stack([m.state_dict()[norm] for m in models]).mean(0)
    torch.testing.assert_close(state["model"][norm], expected)
    assert state["optimizer_history"] == [{"num_updates": 3, "best_loss": 2.5}]
    assert "last_optimizer_state" not in state


def test_tied_scores_are_stored_once(paths, tmp_path):
    main(["average", *paths, "-o", str(tmp_path / "mean.pt")])
    model = torch.load(tmp_path / "mean.pt")["model"]
    embedding = model["decoder.embed_tokens.masked.scores"]
    projection = model["decoder.output_projection.masked.scores"]
    assert embedding.data_ptr() == projection.data_ptr()


def test_the_mean_of_half_precision_is_taken_in_single(models, tmp_path):
    paths = [
        str(write(tmp_path / f"half{number}.pt", model.half()))
        for number, model in enumerate(models)
    ]
    main(["average", *paths, "-o", str(tmp_path / "mean.pt")])
    assert (
        torch.load(tmp_path / "mean.pt")["model"]["mask_version"].dtype == torch.int64
    )
    _, mean = load(tmp_path / "mean.pt")
    assert next(mean.parameters()).dtype == torch.float32


def test_the_last_checkpoints_are_found_by_number(paths, tmp_path, capsys):
    (tmp_path / "checkpoint_best.pt").write_bytes(b"")
    out = tmp_path / "mean.pt"
    assert main(["average", "--last", "2", str(tmp_path), "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "checkpoint10.pt (1 of 2)" in printed.err
    assert "checkpoint11.pt (2 of 2)" in printed.err
    assert printed.out.startswith(f"wrote {out}: mean of 2 checkpoints, 0.1 MB")


def test_checkpoints_of_updates_serve_when_there_are_none_of_epochs(models, tmp_path):
    for updates, model in zip((90, 100, 1000), models):
        write(tmp_path / f"checkpoint_1_{updates}.pt", model)
    out = tmp_path / "mean.pt"
    assert main(["average", "--last", "1", str(tmp_path), "-o", str(out)]) == 0
    expected = models[2].state_dict()["encoder.embed_tokens.masked.scores"]
    mean = torch.load(out)["model"]["encoder.embed_tokens.masked.scores"]
    assert torch.equal(mean, expected)


class Hostile:
    def __reduce__(self):
        return print, ("this code must not run",)


def failing(tmp_path, paths):
    other = str(
        write(tmp_path / "other.pt", build_tiny(mask_seed=2, mask_train="norm"))
    )
    wider = str(write(tmp_path / "wider.pt", build_tiny(decoder_ffn_embed_dim=8)))
    broken = tmp_path / "broken.pt"
    broken.write_bytes((tmp_path / "checkpoint9.pt").read_bytes()[:5000])
    hostile = tmp_path / "hostile.pt"
    torch.save({"model": Hostile()}, hostile)
    empty = tmp_path / "empty.pt"
    torch.save({"weights": 1}, empty)
    return {
        "another seed": ([paths[0], other], "other.pt does not fit"),
        "another shape": ([paths[0], wider], "wider.pt does not fit"),
        "truncated": ([paths[0], str(broken)], f"cannot read {broken}: it is damaged"),
        "hostile": (
            [paths[0], str(hostile)],
            "print, which is not data: it may run code when read, and was not read",
        ),
        "not a checkpoint": ([str(empty)], "it holds no model"),
        "missing": ([paths[0], "no-such.pt"], "no-such.pt is not a file"),
        "folder": ([str(tmp_path)], "is not a file"),
        "too few": (
            ["--last", "9", str(tmp_path)],
            "has 3 numbered checkpoints, --last",
        ),
        "no folder": (
            ["--last", "9", paths[0]],
            "is not a folder; give the --save-dir",
        ),
    }


@pytest.mark.parametrize(
    "case",
    [
        "another seed",
        "another shape",
        "truncated",
        "hostile",
        "not a checkpoint",
        "missing",
        "folder",
        "too few",
        "no folder",
    ],
)
def test_what_cannot_be_averaged_ends_with_a_sentence(case, tmp_path, paths, capsys):
    arguments, expected = failing(tmp_path, paths)[case]
    out = tmp_path / "out" / "mean.pt"
    out.parent.mkdir()
    assert main(["average", *arguments, "-o", str(out)]) == 1
    printed = capsys.readouterr()
    message = printed.err.strip().splitlines()[-1]
    assert message.startswith("onelayer-lottery average: ")
    assert expected in message
    assert "this code must not run" not in printed.out
    assert list(out.parent.iterdir()) == []


def test_an_existing_file_is_replaced_only_by_force(paths, tmp_path, capsys):
    out = tmp_path / "mean.pt"
    out.write_bytes(b"precious")
    assert main(["average", *paths, "-o", str(out)]) == 1
    assert "mean.pt exists, pass --force to replace it" in capsys.readouterr().err
    assert out.read_bytes() == b"precious"
    assert main(["average", *paths, "-o", str(out), "--force"]) == 0
    assert out.read_bytes() != b"precious"


def test_a_folder_that_does_not_exist_is_named(paths, tmp_path, capsys):
    out = tmp_path / "nowhere" / "mean.pt"
    assert main(["average", *paths, "-o", str(out)]) == 1
    assert f"cannot write {out}: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["a.pt", "--last", "2", "dir"], ["--last", "two", "dir"]],
    ids=["nothing", "both", "no number"],
)
def test_misuse_ends_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["average", *arguments, "-o", "mean.pt"])
    assert stop.value.code == 2
    assert "usage: onelayer-lottery average" in capsys.readouterr().err


def test_user_dir_prints_the_folder_of_the_package(capsys):
    import onelayer_lottery

    assert main(["user-dir"]) == 0
    assert capsys.readouterr().out.strip() == onelayer_lottery.__path__[0]


def test_flags_are_explained_for_an_architecture(capsys):
    assert main(["flags"]) == 0
    masked = capsys.readouterr().out
    assert "--mask-keep" in masked
    assert "--reservoir-type" not in masked
    assert main(["flags", "roberta_reservoir_tiny"]) == 0
    assert "--reservoir-type {transformer,ffn,bigru,cnn}" in capsys.readouterr().out
    assert main(["flags", "transformer"]) == 1
    assert "not an architecture of this package; give" in capsys.readouterr().err
