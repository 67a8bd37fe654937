"""Reservoir models through the real commands: training, resuming, tickets, baking."""

import pytest
import torch
from conftest import SPLITS
from test_end_to_end import HYDRA, assert_same_tensors, hydra_train, tensors

from onelayer_lottery.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ARCH = ("--arch", "transformer_reservoir_tiny")
SKIP = (*ARCH, "--reservoir-layers", "alternating", "--reservoir-backward", "skip")
CNN = (*ARCH, "--reservoir-layers", "encoder:0/decoder:1", "--reservoir-type", "cnn")


@pytest.fixture(scope="module")
def skipped(fairseq):
    """The save-dir of eight updates, with a checkpoint of four."""
    flags = ("--max-update", 8, "--save-interval-updates", 4)
    fairseq.train("data-bin", "skipped", *SKIP, *flags)
    return fairseq.folder / "skipped"


@pytest.fixture(scope="module")
def convolved(fairseq):
    fairseq.train("data-bin", "convolved", *CNN)
    return fairseq.folder / "convolved" / "checkpoint_last.pt"


def test_a_checkpoint_holds_no_reservoir(skipped):
    names = [
        name for name in tensors(skipped / "checkpoint_last.pt") if "layers" in name
    ]
    assert names
    assert not [name for name in names if ".layers.1." in name]
    state = torch.load(skipped / "checkpoint_last.pt")
    assert state["cfg"]["model"].reservoir_layers == "encoder:1/decoder:1"


def test_resuming_equals_training_through_to_the_bit(fairseq, skipped):
    fairseq.train("data-bin", "skipped-halves", *SKIP, "--max-update", 4)
    fairseq.train("data-bin", "skipped-halves", *SKIP, "--max-update", 8)
    ours = fairseq.folder / "skipped-halves" / "checkpoint_last.pt"
    assert_same_tensors(tensors(ours), tensors(skipped / "checkpoint_last.pt"))


def test_averages_are_baked_and_translate_the_same_without_this_package(
    fairseq, skipped, capsys
):
    mean, ticket, baked = (skipped / name for name in ("mean.pt", "t.ticket", "b.pt"))
    main(["average", "--last", "2", str(skipped), "-o", str(mean)])
    main(["ticket", str(mean), str(ticket), "--data", str(fairseq.folder / "data-bin")])
    main(["bake", str(ticket), str(baked)])
    out = capsys.readouterr().out
    assert f"wrote {ticket}: no masks, " in out
    assert f"wrote {baked}: transformer, fp32" in out
    ours = fairseq.generate("data-bin", mean).lines("H")
    theirs = fairseq.generate("data-bin", baked, user_dir=False).lines("H")
    assert len(ours) == SPLITS["test"]
    assert ours == theirs


def test_a_ticket_that_cannot_be_baked_translates(fairseq, convolved, capsys):
    folder = convolved.parent
    ticket, restored = folder / "model.ticket", folder / "restored.pt"
    data = str(fairseq.folder / "data-bin")
    spm = str(fairseq.folder / "spm.model")
    main(["ticket", str(convolved), str(ticket), "--data", data, "--bpe", spm])
    assert main(["bake", str(ticket), str(folder / "baked.pt")]) == 1
    assert "reservoir layers of type cnn cannot be baked" in capsys.readouterr().err
    main(["restore", str(ticket), str(restored)])
    ours = fairseq.generate("data-bin", convolved)
    assert ours.lines("H") == fairseq.generate("data-bin", restored).lines("H")
    text = (fairseq.folder / "test.de").read_text(encoding="utf-8")
    done = fairseq.run(
        *("onelayer-lottery", "translate", ticket, "--beam", 2),
        stdin=text,
        user_dir=False,
    )
    assert len(done.out.splitlines()) == SPLITS["test"]
    assert main(["inspect", str(ticket)]) in (0, None)
    assert "reservoir layers:encoder:0/decoder:1|type:cnn" in capsys.readouterr().out


def test_flags_are_refused_with_a_sentence(fairseq):
    flags = ("--reservoir-layers", "encoder:2", "--mask-keep", 0.3)
    done = fairseq.train("data-bin", "bad", *ARCH, *flags, status=None)
    assert done.status != 0
    assert "--mask-keep 0.3: there is no mask; add --reservoir-mask all" in done.log
    assert "--reservoir-layers has encoder:2, but the encoder has 2 layers" in done.log
    assert "Traceback" not in done.log


def test_hydra_trains_a_masked_reservoir_from_a_yaml_file(fairseq):
    arch = "transformer_reservoir_tiny\n  reservoir_mask: all"
    own = str(fairseq.folder / "hydra-reservoir")
    text = HYDRA.replace("transformer_onelayer_random_tiny", arch).replace("SAVE", own)
    hydra_train(fairseq, text)
    done = fairseq.generate("data-bin", "hydra-reservoir/checkpoint_last.pt")
    assert len(done.lines("H")) == SPLITS["test"]
    assert "reservoir layers:encoder:1/decoder:1|type:transformer" in done.log
    assert "|keep:0.3|" in done.log
