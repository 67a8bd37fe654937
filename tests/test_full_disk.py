"""A disk that fills up while a command writes: it is named, and old files stay."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from forks import ForkedFairseq, assert_same_training

from onelayer_lottery.checkpoint.reading import load_checkpoint
from onelayer_lottery.cli import main
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.exports.folder import write_folder

FULL = os.strerror(28)
GOLDEN = Path(__file__).parent / "golden" / "0.1.0"
CHECKPOINT, TICKET = GOLDEN / "checkpoint.pt", GOLDEN / "plain.ticket"


@pytest.fixture
def disk(tmp_path):
    """A disk of 12 KiB, and how to make it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12k", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(disk: Path, size: str):
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


COMMANDS = {
    "ticket": ("ticket", CHECKPOINT, "OUT", "--data", "DATA"),
    "restore": ("restore", TICKET, "OUT"),
    "bake": ("bake", TICKET, "OUT"),
    "average": ("average", CHECKPOINT, CHECKPOINT, "-o", "OUT"),
    "page": ("page", TICKET, "-o", "OUT"),
    "embeddings": ("embeddings", "VECTORS", "--side", "encoder", "-o", "OUT"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The dictionaries of the checkpoint, a file that names its languages, vectors."""
    folder = tmp_path_factory.mktemp("data")
    for language in ("de", "en"):
        shutil.copy(GOLDEN / f"dict.{language}.txt", folder)
    (folder / "train.de-en.de.bin").touch()
    rows = (f"w{number} " + "0.125 " * 16 + "\n" for number in range(200))
    (folder / "vectors.txt").write_text("200 16\n" + "".join(rows))
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_the_full_disk_and_leaves_the_old_file(
    command, data, disk, capsys
):
    out = disk / "out"
    out.write_text("old")
    places = {"OUT": out, "DATA": data, "VECTORS": data / "vectors.txt"}
    words = [str(places.get(word, word)) for word in COMMANDS[command]]
    assert main([*words, "--force"]) == 1
    error = capsys.readouterr().err
    assert f"onelayer-lottery {command}: cannot write {out}: {FULL}" in error
    assert {path.name: path.read_text() for path in disk.iterdir()} == {"out": "old"}


def test_export_names_the_full_disk_and_leaves_the_old_folder(disk, capsys):
    out = disk / "out"
    out.mkdir()
    (out / "old").write_text("old")
    words = ["export", str(TICKET), str(out), "--to", "ctranslate2", "--force"]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert f"onelayer-lottery export: cannot write {out}: {FULL}" in error
    assert [path.name for path in disk.iterdir()] == ["out"]
    assert (out / "old").read_text() == "old"


def test_a_folder_that_cannot_be_replaced_is_put_back(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_folder(out, {"old": b"old"})
    replace = os.replace

    def refuse(source, to):
        if to == out and not source.name.endswith(".old"):
            raise OSError(28, FULL)
        replace(source, to)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(LotteryError, match=f"cannot write .*: {FULL}"):
        write_folder(out, {"new": b"new"}, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "old").read_bytes() == b"old"


def test_plot_names_the_full_disk_and_leaves_only_whole_files(disk, capsys):
    runs = ROOT / "examples" / "grids" / "results"
    assert main(["plot", str(runs), "-o", str(disk / "figures")]) == 1
    error = capsys.readouterr().err
    assert f"onelayer-lottery plot: cannot write in {disk / 'figures'}: {FULL}" in error
    assert not list((disk / "figures").glob(".*"))
    assert not (disk / "figures" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_goes_on_when_the_full_disk_has_room_again(disk, fairseq, tmp_path):
    """To the bit: what fairseq leaves of a last checkpoint is not gone on from."""
    folder, through = disk / "run", tmp_path / "through"
    training = ForkedFairseq(fairseq).train(
        *("data-bin", folder, "--max-tokens", 2400, "--max-update", 12),
        *("--save-interval-updates", 5, "--no-epoch-checkpoints"),
        log=tmp_path / "log",
    )
    resize(disk, "64m")
    training.finish()
    shutil.move(folder, through)
    size = (through / "checkpoint_last.pt").stat().st_size
    resize(disk, str(int(2.5 * size)))  # room for a checkpoint and the best, no more
    training.start()
    assert training.wait() != 0
    assert FULL in training.log.read_text("utf-8")
    assert load_checkpoint(folder / "checkpoint_1_5.pt")
    resize(disk, "64m")
    training.finish()
    assert "continuing from checkpoint" in training.log.read_text("utf-8")
    assert_same_training(folder, through)
