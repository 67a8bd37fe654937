"""The examples' own scripts, as their README runs them, but smaller."""

import json
import re
import subprocess

import pytest
from conftest import ROOT
from warm import warm

from onelayer_lottery.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*words):
    done = subprocess.run(
        [str(warm("python")), *map(str, words)],
        capture_output=True,
        encoding="utf-8",
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_demo_trains_both_models_and_ends_with_a_table(tmp_path):
    script = ROOT / "examples" / "demo" / "demo.py"
    done = run(script, "--out", tmp_path / "out", "--updates", 4)
    assert re.search(r"^dense +\d+\.\d+ ", done.stdout, re.MULTILINE)
    row = re.search(r"^one-layer random +\d+\.\d+ .*$", done.stdout, re.MULTILINE)
    assert "650,240 of 1,300,480" in row.group()
    assert "tok:none" in done.stdout
    assert done.stdout.count("  reference ") == 5
    assert "100%" in done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    ticket = tmp_path / "out" / "one-layer-random.ticket"
    assert results["one-layer random"]["bytes"] == ticket.stat().st_size
    page = tmp_path / "out" / "translator.html"
    assert done.stdout.splitlines()[-1].startswith(f"open {page} in a browser")
    text = page.read_text(encoding="utf-8")
    assert "German to English, in the words of a small grammar</h1>" in text
    assert (tmp_path / "out" / "test.de").read_text("utf-8").splitlines()[0] in text


def test_a_baked_ticket_runs_in_ctranslate2_and_translates_the_same(
    fairseq, trained, tmp_path
):
    ticket, data = tmp_path / "model.ticket", fairseq.folder / "data-bin"
    checkpoint = str(trained / "checkpoint_best.pt")
    assert main(["ticket", checkpoint, str(ticket), "--data", str(data)]) == 0
    text = fairseq.folder / "test.spm.de"
    script = ROOT / "examples" / "deploy" / "deploy.py"
    done = run(script, ticket, data, text, "--out", tmp_path / "out")
    rows = dict(
        re.findall(r"^(CTranslate2 \w+) .* (\d+)/30$", done.stdout, re.MULTILINE)
    )
    assert rows["CTranslate2 float32"] == "30"
    assert int(rows["CTranslate2 int8"]) >= 15  # of a model that has learned nothing
