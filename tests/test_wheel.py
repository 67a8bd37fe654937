"""The wheel: installed with [runtime] into an empty environment, it translates."""

import os
import shutil
import subprocess
import sys
import venv

import pytest
from conftest import ROOT

TICKET = ROOT / "tests" / "golden" / "0.1.0" / "plain.ticket"


def run(*words, **options):
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        encoding="utf-8",
        check=False,
        **options,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_runtime_of_the_wheel_needs_neither_torch_nor_fairseq(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(
        ROOT / "onelayer_lottery",
        source / "onelayer_lottery",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    built = run(*build, "--no-build-isolation", "--wheel-dir", tmp_path, source)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    tools = tmp_path / "empty" / "bin"
    pip = [tools / "python", "-m", "pip", "install", "--quiet"]
    # Without PYTHONPATH, by which pip would find the package installed already.
    kept = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    away = {"cwd": tmp_path, "env": kept}
    installed = run(*pip, f"{wheel}[runtime]", **away)
    if installed.returncode:
        pytest.skip(f"the registry cannot be reached: {installed.stderr[-200:]}")
    listed = run(tools / "python", "-m", "pip", "list", **away).stdout.lower()
    assert "ctranslate2" in listed
    assert "torch" not in listed
    assert "fairseq" not in listed
    done = run(tools / "onelayer-lottery", "translate", TICKET, input="die\n", **away)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    done = run(tools / "onelayer-lottery", "verify", TICKET, **away)
    assert "it needs ctranslate2" in done.stdout
