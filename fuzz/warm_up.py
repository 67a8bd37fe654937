"""Use everything once, so that children do not pay for late imports and caches."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Dict, List

from fuzz.corpus import Seed
from onelayer_lottery import load_classifier, load_ticket
from onelayer_lottery.cli import main as run_command


def warm_up(corpus: Dict[str, List[Seed]]) -> None:
    """Run what is slow the first time, on the first seed of each format."""
    firsts = {seed.task: seed for seed in reversed(corpus["ticket"])}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as quiet:
        quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))
        quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))
        os.chdir(folder)
        try:
            for format, words in _CALLS.items():
                for name, content in corpus[format][0].files.items():
                    Path(name).parent.mkdir(parents=True, exist_ok=True)
                    Path(name).write_bytes(content)
                run_command(words)
            path = Path("model.ticket")
            path.write_bytes(firsts["translation"].files["model.ticket"])
            load_ticket(path).translate(["ein hund", "eine kleine katze"])
            path.write_bytes(firsts["sentence_prediction"].files["model.ticket"])
            load_classifier(path).classify([("ein hund", "eine katze"), ("x", "y")])
        finally:
            os.chdir(before)


_CALLS = {
    "ticket": ["bake", "model.ticket", "out.pt"],
    "checkpoint": ["ticket", "model.checkpoint", "out.ticket"],
    "vectors": ["embeddings", "vectors.txt", "--side", "encoder", "-o", "out.txt"],
    "grid": ["sweep", "grid.yaml", "--out", "out", "--dry-run"],
    "results": ["plot", "swept", "-o", "figures"],
}
