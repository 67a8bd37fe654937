"""Fuzzing: a bounded run, all kept findings, and the classes that a case can end in."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT
from warm import warm

sys.path.insert(0, str(ROOT))

from fuzz.cases import make_case, unchanged_case
from fuzz.child import CANARY, INPUTS, MARKER, Child, Limits, Work, run_alone
from fuzz.corpus import make_corpus
from onelayer_lottery.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's limits")

REGRESSIONS = ROOT / "fuzz" / "regressions"


def fuzz(*arguments):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [str(warm("python")), "-m", "fuzz", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_every_case_is_read_or_refused_in_a_sentence():
    done = fuzz("--cases", 300, "--seed", 1, "--jobs", 2)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "300 of 300 cases" in done.stdout


@pytest.mark.slow
def test_what_once_failed_is_read_or_refused():
    done = fuzz("--replay", "--jobs", 2)
    saved = len(list(REGRESSIONS.glob("*/case.json")))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"{saved} saved cases, 0 of them fail" in done.stdout


@pytest.mark.slow
def test_a_case_is_made_from_seed_and_number_alone():
    shown = fuzz("--only", 3, "--seed", 5).stdout
    first, second = make_corpus(), make_corpus()
    for number in range(20):
        case = make_case(first, 5, number)
        assert case == make_case(second, 5, number)
        assert case != make_case(first, 6, number)
    case = make_case(first, 5, 3)
    assert f"onelayer-lottery {case.command} {' '.join(case.arguments)}\n" in shown
    assert case.note in shown


@pytest.mark.slow
def test_unchanged_files_are_read(tmp_path):
    """Or else a fuzzer would see nothing but refusals."""
    commands = {
        **{"ticket": "restore", "checkpoint": "average", "vectors": "embeddings"},
        **{"grid": "sweep", "results": "plot"},
    }
    import onelayer_lottery.experiments.plot.report  # noqa: F401  its import writes a cache

    for format, seeds in make_corpus().items():
        for number, seed in enumerate(seeds):
            case = unchanged_case(commands[format], seed)
            folder = tmp_path / f"{format}-{number}"
            folder.mkdir()
            words = [case.command, *case.arguments]
            if not words[1].endswith(".txt") and format == "vectors":
                words += ["--embed-dict", "dict.txt"]
            act, prepare = partial(main, words), partial(written, case)
            outcome = run_alone(folder, act, prepare=prepare)
            assert outcome.kind == "ok", (seed.name, outcome)


def written(case):
    case.write(Path())
    return case.stdin


# How a child can end


def refuse():
    print("onelayer-lottery inspect: it is not a ticket", file=sys.stderr)
    return 1


def say_nothing():
    return 1


def show_a_control_character():
    print("onelayer-lottery inspect: \x1b[2J", file=sys.stderr)
    return 1


def leave_a_file():
    Path("out.pt").write_bytes(b"half")
    return refuse()


def fail():
    json.loads("{")


def end_without_a_sentence():
    raise SystemExit("--mask-keep is 0")


def crash():
    os.abort()


def hang():
    while True:
        pass


def sleep():
    time.sleep(60)


def take_memory():
    bytearray(2 << 30)


def touch_memory():
    bytearray(b"x") * (250 << 20)


def run_a_command():
    os.system(f"touch {MARKER}")


def evaluate():
    eval(f"['{MARKER}']")


def open_the_canary():
    open(CANARY).close()


def write_elsewhere():
    Path("../../elsewhere").write_bytes(b"")


def show_a_secret():
    print(os.environ["PWNED_SECRET"])


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda: 0, "ok"),
        (refuse, "refused"),
        (say_nothing, "message"),
        (show_a_control_character, "message"),
        (end_without_a_sentence, "message"),
        (leave_a_file, "leftover"),
        (fail, "traceback"),
        (crash, "crash"),
        (hang, "hang"),
        (sleep, "hang"),
        (take_memory, "memory"),
        (touch_memory, "memory"),
        (run_a_command, "executed"),
        (evaluate, "executed"),
        (open_the_canary, "executed"),
        (write_elsewhere, "executed"),
        (show_a_secret, "executed"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_end_of_a_child_is_classified(act, kind, tmp_path):
    limits = Limits(cpu_seconds=1, wall_seconds=3)

    def prepare():
        Path(CANARY).write_bytes(b"")
        return b""

    outcome = run_alone(tmp_path, act, prepare=prepare, limits=limits)
    assert outcome.kind == kind, outcome
    assert not (tmp_path.parent / "elsewhere").exists()


def test_a_child_that_dies_leaves_the_cases_that_it_did_not_begin(tmp_path):
    acts = {"fine": lambda: 0, "fails": fail, "dies": crash, "not begun": lambda: 0}
    for name in acts:
        (tmp_path / name).mkdir()
    child = Child([Work(tmp_path / name, act) for name, act in acts.items()])
    kinds = []
    while not child.ended:
        ended = child.poll(1)
        kinds += [ended[1].kind] if ended else []
    assert kinds == ["ok", "traceback", "crash"]
    assert [work.folder.name for work in child.left] == ["not begun"]


def test_a_traceback_names_the_innermost_frame_of_the_package(tmp_path):
    from onelayer_lottery.conversion.tasks import read_symbols

    outcome = run_alone(tmp_path, lambda: read_symbols("w"))
    assert outcome.kind == "traceback"
    assert outcome.frame.startswith(("fairseq/", "onelayer_lottery/"))
    assert "Traceback" in outcome.stderr


def test_a_child_finds_its_files_and_lines_of_text(tmp_path):
    def prepare():
        Path("here").write_text("file")
        return b"line\n"

    def act():
        return 0 if (input(), Path("here").read_text()) == ("line", "file") else 1

    assert run_alone(tmp_path, act, prepare=prepare).kind == "ok"
    assert (tmp_path / INPUTS / "here").exists()
