"""Files that 0.1.0 wrote: they load, and give the same weights to the bit."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from onelayer_lottery.cli import main
from onelayer_lottery.conversion.to_model import working_model
from onelayer_lottery.ticket.format import read_ticket

GOLDEN = Path(__file__).parent / "golden" / "0.1.0"
DIGESTS = json.loads((GOLDEN / "digests.json").read_text())
TICKETS = sorted(path.stem for path in GOLDEN.glob("*.ticket"))


def digest(tensors) -> str:
    """Of all weights; fairseq's markers of its own version are none.

    fairseq 0.12.2 has copies of an encoder layer's weights, named such as fc1_weight.
    """
    seen = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        marker = re.search("version|_float_tensor|_(weight|bias)$", name)
        if tensor.is_floating_point() and not marker:
            seen.update(name.encode())
            seen.update(tensor.float().numpy().astype("<f4").tobytes())
    return seen.hexdigest()


def test_every_golden_file_is_looked_at():
    assert {*TICKETS, "checkpoint"} == set(DIGESTS)


@pytest.mark.parametrize("name", TICKETS)
def test_a_ticket_gives_the_same_weights(name):
    model, _ = working_model(read_ticket(GOLDEN / f"{name}.ticket"))
    assert digest(model.state_dict()) == DIGESTS[name]


@pytest.mark.parametrize("name", TICKETS)
def test_a_ticket_is_restored_and_inspected(name, tmp_path, capsys):
    ticket, restored = GOLDEN / f"{name}.ticket", tmp_path / "restored.pt"
    assert main(["inspect", str(ticket)]) == 0
    assert main(["restore", str(ticket), str(restored)]) == 0
    assert restored.exists()


@pytest.fixture(scope="module")
def data(fairseq, tmp_path_factory):
    """A corpus with the dictionaries of the golden checkpoint."""
    folder = tmp_path_factory.mktemp("golden")
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            text = (fairseq.folder / f"{split}.{language}").read_text("utf-8")
            (folder / f"{split}.{language}").write_text(text, "utf-8")
    fairseq.run(
        "fairseq-preprocess",
        *("-s", "de", "-t", "en", "--destdir", folder / "data-bin"),
        *("--trainpref", folder / "train", "--validpref", folder / "valid"),
        *("--testpref", folder / "test"),
        *("--srcdict", GOLDEN / "dict.de.txt", "--tgtdict", GOLDEN / "dict.en.txt"),
        user_dir=False,
    )
    return folder / "data-bin"


SHAPE = (
    *("--encoder-embed-dim", 8, "--decoder-embed-dim", 8),
    *("--encoder-ffn-embed-dim", 12, "--decoder-ffn-embed-dim", 12),
)


def test_a_checkpoint_gives_the_same_weights(data, tmp_path):
    baked, source = tmp_path / "baked.pt", GOLDEN / "checkpoint.pt"
    assert main(["bake", str(source), str(baked), "--data", str(data)]) == 0
    tensors = torch.load(baked, weights_only=True)["model"]
    assert digest(tensors) == DIGESTS["checkpoint"]


def test_a_checkpoint_generates(fairseq, data):
    done = fairseq.generate(data, GOLDEN / "checkpoint.pt")
    assert len(done.lines("H")) == 30


def resume(fairseq, data, folder, *flags, status):
    folder.mkdir()
    shutil.copy(GOLDEN / "checkpoint.pt", folder / "checkpoint_last.pt")
    flags = (*SHAPE, "--max-update", 3, *flags)
    return fairseq.train(data, folder, *flags, status=status)


def test_a_checkpoint_is_not_resumed_with_other_sizes(fairseq, data, tmp_path):
    done = resume(fairseq, data, tmp_path / "run", status=1)
    assert "it was trained with --mask-fan kept --mask-gain 1.0, this model" in done.log
    assert "give the same flags, or start a new --save-dir" in done.log
    assert "Traceback" not in done.log


def test_a_checkpoint_is_resumed_with_its_own_sizes(fairseq, data, tmp_path):
    flags = ("--mask-preset", "paper-text")
    done = resume(fairseq, data, tmp_path / "run", *flags, status=0)
    assert "num_updates: 3" in done.log or "num_updates=3" in done.log
