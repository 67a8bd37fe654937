"""The commands that are fuzzed, and case N of a run: derived from seed and number."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Callable, Dict, List, Tuple

from fuzz.checkpoints import Hostile, mutate_checkpoint
from fuzz.child import CANARY, MARKER
from fuzz.corpus import WORDS, Seed, subword_models
from fuzz.texts import TEXT_MUTATORS, mutate_bytes, mutate_dictionary, mutate_lines
from fuzz.tickets import mutate_ticket

Corpus = Dict[str, List[Seed]]


@dataclass(frozen=True)
class Command:
    """A command of onelayer-lottery, and the formats that it reads."""

    formats: Tuple[str, ...]
    arguments: Tuple[str, ...]  # INPUT stands for the file that is changed
    optional: Tuple[Tuple[str, ...], ...] = ()  # one of these is added at times
    task: str = ""  # seeds of this task are taken more often
    weight: int = 16


_DICTIONARIES = ("--data", ".")
COMMANDS: Dict[str, Command] = {
    "inspect": Command(("ticket", "checkpoint"), ("INPUT",), (("--json",),), weight=24),
    "restore": Command(("ticket",), ("INPUT", "out.pt"), (("--force",),), weight=32),
    "bake": Command(
        ("ticket", "ticket", "checkpoint"),
        ("INPUT", "out.pt"),
        (("--dtype", "fp16"), _DICTIONARIES),
        weight=40,
    ),
    "verify": Command(("ticket",), ("INPUT",)),
    "export": Command(
        ("ticket",),
        ("INPUT", "out", "--to", "ctranslate2"),
        (("--compute", "int8"), ("--to", "huggingface")),
        weight=24,
    ),
    "page": Command(("ticket",), ("INPUT", "-o", "out.html"), weight=4),
    "translate": Command(
        ("ticket",),
        ("INPUT",),
        (("--beam", "1"), ("--compute", "int8"), ("--engine", "fairseq")),
        task="translation",
        weight=32,
    ),
    "classify": Command(
        ("ticket",),
        ("INPUT",),
        (("--engine", "fairseq"),),
        task="sentence_prediction",
        weight=24,
    ),
    "score": Command(
        ("ticket",),
        ("INPUT",),
        (("--total",), ("--compute", "int8"), ("--engine", "fairseq")),
        task="language_modeling",
        weight=24,
    ),
    "continue": Command(
        ("ticket",),
        ("INPUT", "--symbols", "12"),
        (
            ("--prompt", "der hund", "--samples", "2"),
            ("--sampling-topk", "3", "--sampling-topp", "0.5"),
            ("--engine", "fairseq"),
        ),
        task="language_modeling",
        weight=24,
    ),
    "ticket": Command(
        ("checkpoint",),
        ("INPUT", "out.ticket"),
        (
            ("--embeddings", "fp16"),
            ("--moses", "words", "--lower"),
            _DICTIONARIES,
            *(
                ("--bpe", "bpe", "--bpe-kind", kind)
                for kind in sorted(subword_models())
            ),
        ),
        weight=40,
    ),
    "average": Command(
        ("checkpoint",), ("INPUT", "OTHER", "-o", "out.pt"), (("INPUT",),)
    ),
    "embeddings": Command(
        ("checkpoint", "vectors", "vectors"),
        ("INPUT", "-o", "out.txt", "--side", "encoder"),
        (("--side", "decoder"), ("--embed-dict", "dict.txt")),
        weight=24,
    ),
    "sweep": Command(("grid",), ("INPUT", "--out", "out", "--dry-run")),
    "plot": Command(("results",), ("swept", "-o", "figures"), weight=1),
}


@dataclass
class Case:
    """A call of the command line, with the files that it finds in its folder."""

    command: str
    arguments: List[str]  # without the command
    stdin: bytes
    note: str  # what was changed, for people
    files: Dict[str, bytes] = field(repr=False)

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def make_case(corpus: Corpus, seed: int, number: int) -> Case:
    """The same case for the same seed and number."""
    chance = Random(f"{seed}/{number}")
    weights = [command.weight for command in COMMANDS.values()]
    name = chance.choices(list(COMMANDS), weights)[0]
    command = COMMANDS[name]
    seeds = corpus[chance.choice(command.formats)]
    if command.task and chance.random() < 0.9:
        seeds = [seed for seed in seeds if seed.task == command.task]
    chosen = chance.choice(seeds)
    case = unchanged_case(name, chosen)
    case.stdin = _lines(chance, pairs=name == "classify")
    files, note = _changed(chance, chosen)
    case.files.update(files)
    case.note = f"{chosen.name}: {note}"
    if command.optional and chance.random() < 0.3:
        extra = chance.choice(command.optional)
        case.arguments += [chosen.target if word == "INPUT" else word for word in extra]
        if "--bpe" in extra:
            case.note += f"; {_add_subwords(chance, case.files, kind=extra[-1])}"
    return case


def unchanged_case(name: str, seed: Seed) -> Case:
    """A command that reads a valid file."""
    names = {"INPUT": seed.target, "OTHER": "other.checkpoint"}
    arguments = [names.get(word, word) for word in COMMANDS[name].arguments]
    files = {**seed.files, CANARY: _canary()}
    if "OTHER" in COMMANDS[name].arguments:
        files["other.checkpoint"] = seed.files[seed.target]
    return Case(name, arguments, b"", seed.name, files)


def _changed(chance: Random, seed: Seed) -> Tuple[Dict[str, bytes], str]:
    files, content = dict(seed.files), seed.files[seed.target]
    others = sorted(set(files) - {seed.target})
    if others and chance.random() < 0.15:
        name = chance.choice(others)
        mutate = TEXT_MUTATORS.get(Path(name).suffix, mutate_bytes)
        files[name], note = mutate(chance, files[name])
        return files, f"{name}: {note}"
    if seed.format == "checkpoint":
        files[seed.target], note = mutate_checkpoint(chance, seed)
        return files, note
    mutators: Dict[str, Callable] = {"ticket": mutate_ticket, "vectors": mutate_lines}
    own = TEXT_MUTATORS.get(Path(seed.target).suffix, mutators.get(seed.format))
    if seed.format == "vectors" and seed.target.endswith(".txt"):
        own = mutate_lines
    if seed.format != "ticket" and chance.random() < 0.2:
        own = mutate_bytes
    files[seed.target], note = own(chance, content)
    return files, note


def _add_subwords(chance: Random, files: Dict[str, bytes], *, kind: str) -> str:
    content = subword_models()[kind]
    change = chance.choice((mutate_bytes, mutate_bytes, mutate_dictionary))
    content, note = change(chance, content)
    if kind == "gpt2":
        first, _, second = content.partition(b"\0")
        files.update({"bpe/encoder.json": first, "bpe/vocab.bpe": second})
    else:
        files["bpe"] = content
    return f"{kind}: {note}"


def _canary() -> bytes:
    """A pickle that makes a file when it is loaded."""
    return pickle.dumps(Hostile(os.system, (f"touch {MARKER}",)), protocol=2)


def _lines(chance: Random, *, pairs: bool) -> bytes:
    def sentence() -> str:
        odd = ("ü" * 3, "\x00", "x" * 90, "<unk>", "</s>", "\u2028", "@@", "<mask>")
        words = chance.choices([*WORDS, chance.choice(odd)], k=chance.choice((1, 3, 8)))
        return " ".join(words)

    lines = [
        "\t".join(sentence() for _ in range(2 if pairs else 1))
        for _ in range(chance.choice((1, 2, 3)))
    ]
    return "".join(line + "\n" for line in lines).encode()
