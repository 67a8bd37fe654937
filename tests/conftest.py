"""A small real corpus, and the real fairseq commands to use on it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Callable, Iterator, List, NamedTuple, Optional

import pytest
import sentencepiece
from warm import warm

ROOT = Path(__file__).parent.parent
USER_DIR = ROOT / "onelayer_lottery"
sys.path.insert(0, str(ROOT / "examples" / "demo"))

# Older versions cannot have tensors of a device that is not there.
FAKE_DEVICES = tuple(map(int, metadata.version("torch").split(".")[:2])) >= (2, 6)

SPLITS = {"train": 600, "valid": 60, "test": 30}


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Mark as slow what runs fairseq's commands."""
    for item in items:
        if "fairseq" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def log(self) -> str:
        return self.out + self.err

    def lines(self, tag: str) -> List[str]:
        """The lines of fairseq's output with a tag such as H, without it."""
        return [line for line in self.out.splitlines() if line.startswith(f"{tag}-")]


class Fairseq:
    """Runs fairseq's commands with this package as --user-dir."""

    def __init__(self, folder: Path):
        self.folder = folder

    def run(
        self,
        command: str,
        *arguments: object,
        stdin: str = "",
        user_dir: bool = True,
        status: Optional[int] = 0,
        start: Callable[[str], Path] = warm,
    ) -> Outcome:
        """Run a command, started by ``warm`` or as a new process by ``real``."""
        words = [start(command), *arguments]
        words += ["--user-dir", USER_DIR] if user_dir else []
        done = subprocess.run(
            [str(word) for word in words],
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=300,
            check=False,
        )
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        if status is not None:
            assert outcome.status == status, outcome.log[-4000:]
        return outcome

    def train(self, data: str, save_dir: str, *flags: object, **options) -> Outcome:
        given = {str(flag) for flag in flags}
        defaults = [
            *("--arch", "transformer_onelayer_random_tiny"),
            *("--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 48),
            *("--encoder-layers", 2, "--decoder-layers", 2),
            *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 48),
            *("--optimizer", "adam", "--lr", 2e-3, "--dropout", 0.1),
            *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1),
            *("--max-tokens", 1200, "--max-update", 4),
            *("--required-batch-size-multiple", 1, "--num-workers", 0),
            *("--log-format", "simple", "--log-interval", 1, "--cpu"),
        ]
        kept = []
        for flag, value in _pairs(defaults):
            if flag not in given:
                kept += [flag, *value]
        return self.run(
            "fairseq-train", data, "--save-dir", save_dir, *kept, *flags, **options
        )

    def generate(self, data: str, path: str, *flags: object, **options) -> Outcome:
        common = ["--beam", 2, "--max-len-b", 12, "--max-tokens", 2000, "--cpu"]
        if "--required-batch-size-multiple" not in flags:
            common += ["--required-batch-size-multiple", 1]
        return self.run(
            "fairseq-generate", data, "--path", path, *common, *flags, **options
        )


def _pairs(words):
    flag, value = None, []
    for word in words:
        if str(word).startswith("--"):
            if flag:
                yield flag, value
            flag, value = word, []
        else:
            value.append(word)
    yield flag, value


@pytest.fixture(scope="session")
def fairseq(tmp_path_factory) -> Iterator[Fairseq]:
    """The commands, in a folder with data-bin (separate) and joined (dictionaries)."""
    import grammar

    folder = tmp_path_factory.mktemp("fairseq")
    pairs = grammar.sentence_pairs(sum(SPLITS.values()), seed=3)
    for split, count in SPLITS.items():
        chosen, pairs = pairs[:count], pairs[count:]
        for side, language in enumerate(("de", "en")):
            text = "".join(pair[side] + "\n" for pair in chosen)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=f"{folder}/train.de,{folder}/train.en",
        model_prefix=f"{folder}/spm",
        vocab_size=400,
        model_type="bpe",
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/spm.model")
    for split in SPLITS:
        for language in ("de", "en"):
            lines = (folder / f"{split}.{language}").read_text("utf-8").splitlines()
            encoded = (" ".join(p) for p in pieces.encode(lines, out_type=str))
            text = "".join(line + "\n" for line in encoded)
            (folder / f"{split}.spm.{language}").write_text(text, encoding="utf-8")
    commands = Fairseq(folder)
    for name, flags in {"data-bin": [], "joined": ["--joined-dictionary"]}.items():
        commands.run(
            "fairseq-preprocess",
            *("-s", "de", "-t", "en", "--destdir", name),
            *("--trainpref", "train.spm", "--validpref", "valid.spm"),
            *("--testpref", "test.spm", *flags),
            user_dir=False,
        )
    yield commands
    # Tests share the folder: without --save-dir one would resume another's training.
    assert not (folder / "checkpoints").exists()


@pytest.fixture(scope="session")
def trained(fairseq) -> Path:
    """A save-dir of a short training: checkpoints of two epochs, best and last."""
    fairseq.train("data-bin", "trained", "--max-epoch", 2, "--max-update", 100)
    return fairseq.folder / "trained"
