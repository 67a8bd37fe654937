"""The selection in Triton: the same bits in its interpreter, and code for real GPUs."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from conftest import FAKE_DEVICES, ROOT

from onelayer_lottery.core.selection import OPT_IN, Selection, selection_for
from onelayer_lottery.errors import LotteryError

TRITON = "triton==3.9.0"


@pytest.fixture(scope="module")
def python_path(tmp_path_factory):
    """Where triton is: here, where ONELAYER_TRITON says, or installed for the tests."""
    if importlib.util.find_spec("triton"):
        return ""
    given = os.environ.get("ONELAYER_TRITON")
    if given:
        return given
    if sys.version_info < (3, 10):
        pytest.skip(f"{TRITON} does not run on this Python")
    folder = tmp_path_factory.mktemp("triton")
    words = ["install", "--quiet", "--no-deps", "--target", str(folder), TRITON]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, encoding="utf-8"
    )
    if done.returncode:
        pytest.skip(f"triton cannot be installed: {done.stderr[-200:]}")
    return str(folder)


def run(script, python_path, *words, **environment):
    return subprocess.run(
        [sys.executable, str(ROOT / script), *words],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": python_path, **environment},
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_kernels_select_the_masks_of_the_cpu_bit_for_bit(python_path):
    done = run("tests/triton_cases.py", python_path, TRITON_INTERPRET="1")
    assert (done.returncode, done.stdout) == (0, "all equal\n"), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_kernels_compile_for_real_gpus(python_path, tmp_path):
    done = run("tests/triton_compiled.py", python_path, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 3 * 2 * 3
    assert all(int(size) > 1000 for *_, size in lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readme_has_the_counted_cost(python_path):
    if not FAKE_DEVICES:
        pytest.skip("torch cannot count operations")
    done = run("benchmarks/gpu.py", python_path, "--count")
    assert done.returncode == 0, done.stderr[-3000:]
    table = done.stdout.strip().split("\n\n")[-1]
    assert "| small | triton |" in table
    assert table in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


def test_triton_is_used_only_where_it_is_asked_for(monkeypatch):
    device = torch.device("cuda")
    monkeypatch.setattr("onelayer_lottery.core.selection.Selection", Stand)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert isinstance(selection_for([4], [2], device=device), Stand)
    monkeypatch.setenv(OPT_IN, "1")
    assert isinstance(selection_for([4], [2], device=torch.device("cpu")), Stand)
    monkeypatch.delitem(
        sys.modules, "onelayer_lottery.core.selection_triton", raising=False
    )
    with pytest.raises(LotteryError, match=f"{OPT_IN}=1 needs the package triton"):
        selection_for([4], [2], device=device)


class Stand(Selection):
    """Stands for a selection on a device that is not here."""

    def __init__(self, *_, **__):
        pass
