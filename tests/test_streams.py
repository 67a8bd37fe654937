"""Commands whose standard input or output is closed, full or left by its reader."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT
from stock import build_tiny, translation_task
from test_convert import checkpoint_of, dictionaries_of
from warm import warm

from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.ticket.format import write_ticket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NO_SPACE = "cannot write to standard output: No space left on device\n"
CLOSED = "cannot write to standard output: it is closed\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ticket, a grid and its data."""
    folder = tmp_path_factory.mktemp("streams")
    task = translation_task(40, 30)
    state = checkpoint_of(build_tiny(task=task))
    ticket = ticket_from_checkpoint(state, dictionaries=dictionaries_of(task))
    write_ticket(ticket, folder / "model.ticket")
    (folder / "data").mkdir()
    for name in ("train.de-en.de.idx", "train.de-en.en.idx"):
        (folder / "data" / name).write_text("")
    (folder / "grid.yaml").write_text(
        f"data: {folder / 'data'}\nbase: {{arch: transformer, optimizer: adam}}\n"
        "variants: {a: {}}\nseeds: [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
    )
    return folder


def run(folder, line, *, stdin="w1 w2\n"):
    python = sys.executable if "&-" in line else warm("python")  # closed, or not
    command = f"{python} -m onelayer_lottery.cli {line}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=120,
    )


COMMANDS = [
    "inspect model.ticket",
    "flags",
    "user-dir",
    "translate model.ticket",
    "sweep grid.yaml --out runs --dry-run",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_standard_output_is_told(command, folder):
    done = run(folder, f"{command} > /dev/full")
    name = command.split()[0]
    assert (done.returncode, done.stderr) == (1, f"onelayer-lottery {name}: {NO_SPACE}")


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[1], COMMANDS[3]])
def test_a_closed_standard_output_is_told(command, folder):
    done = run(folder, f"{command} >&-")
    name = command.split()[0]
    assert (done.returncode, done.stderr) == (1, f"onelayer-lottery {name}: {CLOSED}")


def test_a_reader_that_leaves_is_no_error(folder):
    done = run(folder, "flags | true; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_help_that_cannot_be_written_is_told(folder):
    done = run(folder, "inspect --help > /dev/full")
    assert (done.returncode, done.stderr) == (1, f"onelayer-lottery: {NO_SPACE}")


def test_a_closed_standard_input_is_told(folder):
    done = run(folder, "translate model.ticket <&-")
    assert (done.returncode, done.stderr) == (
        1,
        "onelayer-lottery translate: standard input is closed; give it lines of text\n",
    )


def test_a_standard_input_that_cannot_be_read_is_told(folder):
    done = run(folder, "translate model.ticket 0> written")
    assert (done.returncode, done.stderr) == (
        1,
        "onelayer-lottery translate: cannot read standard input: Bad file descriptor\n",
    )


@pytest.mark.parametrize("stderr", ["2>&-", "2> /dev/full"])
def test_a_message_that_cannot_be_written_is_left_out(stderr, folder):
    text = "w1 " * 2000 + "\nw2\n"  # a line that is cut with a warning
    done = run(folder, f"translate model.ticket --beam 1 {stderr}", stdin=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 2
    done = run(folder, f"translate none.ticket {stderr}")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
