"""The commands of README.md, verbatim but for a smaller model and one update."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, SPLITS, USER_DIR

from onelayer_lottery.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALLER = """
    --max-update 1 --cpu --encoder-embed-dim 32 --encoder-ffn-embed-dim 32
    --decoder-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-layers 1
    --decoder-layers 1 --num-workers 0
""".split()
README = (ROOT / "README.md").read_text(encoding="utf-8")


def command(start: str) -> list:
    lines = [line for line in README.splitlines() if line.startswith(start + " ")]
    assert lines, start
    return shlex.split(lines[0])


def test_preprocess_train_and_generate_work_as_written(fairseq):
    for name in ("fairseq-preprocess", "fairseq-train", "fairseq-generate"):
        words = [
            str(USER_DIR) if word == "onelayer_lottery" else word
            for word in command(name)[1:]
        ]
        if name == "fairseq-preprocess":
            words[words.index("data-bin")] = "readme-bin"
        else:
            words[0] = "readme-bin"
        extra = {"fairseq-train": SMALLER, "fairseq-generate": ["--cpu"]}.get(name, [])
        done = fairseq.run(name, *words, *extra, user_dir=False)
    assert len(done.lines("H")) == SPLITS["test"]


def test_every_flag_of_the_masks_is_in_the_table():
    from dataclasses import fields

    from onelayer_lottery.config import MaskConfig
    from onelayer_lottery.reservoir_config import ReservoirConfig

    masks = {field.name: field for field in fields(MaskConfig)}
    reservoirs = {field.name: field for field in fields(ReservoirConfig)}
    for field in {**reservoirs, **masks}.values():
        if not field.name.startswith("_"):
            flag = "--" + field.name.replace("_", "-")
            row = re.search(
                rf"^\| `{flag}` \|\s*`?([^|`]*?)`?\s*\|", README, re.MULTILINE
            )
            assert row, flag
            default = "" if field.default is False else str(field.default)
            assert row.group(1).strip() == default


def test_every_room_is_on_the_map():
    for path in (ROOT / "onelayer_lottery").glob("*.py"):
        if path.name != "__init__.py":
            assert f"`onelayer_lottery/{path.name}`" in README or (
                f"`{path.name}`" in README
            ), path.name
    for path in (ROOT / "onelayer_lottery" / "experiments").glob("*.py"):
        assert path.name == "__init__.py" or f"`{path.name}`" in README, path.name


def test_every_command_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    ([a-z-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert "average" in commands
    for name in commands:
        assert f"onelayer-lottery {name}" in README, name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (Path(ROOT) / target).exists(), target
