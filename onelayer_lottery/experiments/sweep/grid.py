"""Read a grid file: variants of a training, and the runs that they stand for.

A grid is trusted like a shell script: its flags become commands, and fairseq evaluates
some of their values as Python.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.plot.table1 import PAPER
from onelayer_lottery.experiments.sweep.grid_file import read_yaml
from onelayer_lottery.experiments.sweep.grid_values import (
    flags_in,
    refuse_unknown,
    section_in,
    shown,
    text_in,
    whole_in,
)
from onelayer_lottery.experiments.sweep.runs import (
    Above,
    Flags,
    Run,
    command_line_flags,
    crossed,
    identified,
    runs_of,
)

_KEYS = (
    *("figure", "title", "corpus", "data", "reference", "gpus", "seeds"),
    *("base", "variants", "generate", "average"),
)
# Keys of a variant that are not fairseq flags.
_OWN = ("label", "seeds", "table1")
_MAX_RUNS = 10_000
_MAX_FLAGS = 500  # per run; fairseq has fewer


@dataclass(frozen=True)
class Variant:
    """A line of a figure."""

    name: str
    label: str
    table1: Optional[str]  # its row in the paper's Table 1


@dataclass(frozen=True)
class Grid:
    """What a grid file says, expanded."""

    name: str
    title: str
    figure: Optional[int]
    corpus: str
    data: Path
    reference: Optional[Path]
    gpus: int  # per run
    variants: Tuple[Variant, ...]
    runs: Tuple[Run, ...]  # two variants may have the same run


def read_grid(path: Path, *, data: Optional[Path] = None) -> Grid:
    """Read and expand a grid file; ``data`` replaces its data folder."""
    content = read_yaml(path)
    try:
        return _grid(path.stem, content, data)
    except LotteryError as error:
        raise LotteryError(f"{path}: {error}") from None


def data_digest(data: Path) -> str:
    """Return a digest of prepared data: dictionaries, and the sizes of all files."""
    seen = hashlib.sha256()
    for file in sorted(data.rglob("*")):
        if file.suffix in (".bin", ".idx") or file.name.startswith("dict."):
            seen.update(f"{file.relative_to(data)} {file.stat().st_size}\n".encode())
            if file.name.startswith("dict."):
                seen.update(file.read_bytes())
    return seen.hexdigest()[:16]


def _grid(name: str, content: Dict[str, Any], data: Optional[Path]) -> Grid:
    refuse_unknown(content, _KEYS, "key")
    named = text_in(content, "data", "")
    if not data and not named:
        raise LotteryError("it names no data: add data: FOLDER, or pass --data FOLDER")
    folder = data or Path(named)
    try:
        _check_data(folder)
        reference = _reference(content, folder)
        digest = data_digest(folder)
    except OSError as error:
        raise LotteryError(
            f"cannot read the data in {folder}: {error.strerror}"
        ) from None
    variants = section_in(content, "variants")
    if not variants:
        raise LotteryError("it has no variants: nothing to run")
    _check_count(len(variants))
    for variant, given in variants.items():
        if not isinstance(given, (dict, type(None))):
            raise LotteryError(f"variant {variant} is not a mapping of flags to values")
    base = flags_in(section_in(content, "base"), "base")
    flags = {n: _flags_of(n, given or {}, base) for n, given in variants.items()}
    seeds = {n: _seeds_of(n, given or {}, content) for n, given in variants.items()}
    _check_count(
        sum(
            len(seeds[n]) * math.prod(map(len, crossed(flags[n]).values()))
            for n in variants
        )
    )
    generate, average = _generate_flags(content), whole_in(content, "average", 0)
    runs: List[Run] = []
    above: Above = {}
    for variant in variants:
        made = [
            identified(replace(run, generate=generate, average=average), digest)
            for run in runs_of(variant, flags[variant], seeds[variant], above)
        ]
        for run in made:
            above.setdefault((variant, run.seed), []).append(run)
        above[variant, None] = made
        runs += made
    return Grid(
        name=name,
        title=text_in(content, "title", name),
        figure=whole_in(content, "figure", None),
        corpus=text_in(content, "corpus", folder.name),
        data=folder,
        reference=reference,
        gpus=whole_in(content, "gpus", 1),
        variants=tuple(_variant(name, given or {}) for name, given in variants.items()),
        runs=tuple(runs),
    )


def _reference(content: Dict[str, Any], folder: Path) -> Optional[Path]:
    name = text_in(content, "reference", "")
    if not name:
        return None
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise LotteryError(
            f"reference {name} is not a file name inside the data folder; put the file"
            " there, and give its name"
        )
    if not (folder / name).is_file():
        raise LotteryError(
            f"reference {name} is not a file; it is looked for in the data folder"
            f" {folder}, one sentence a line"
        )
    return folder / name


def _variant(name: str, given: Dict[str, Any]) -> Variant:
    rows = [row.key for row in PAPER]
    if given.get("table1") not in (None, *rows):
        raise LotteryError(
            f"variant {name}: table1 is {given['table1']!s:.80}; give one of"
            f" {', '.join(rows)}"
        )
    label = text_in(given, "label", name, where=f"variant {name}: ")
    return Variant(name, label, given.get("table1"))


def _flags_of(
    variant: str, given: Dict[str, Any], base: Dict[str, Any]
) -> Dict[str, Any]:
    where = f"variant {variant}"
    own = flags_in({k: v for k, v in given.items() if k not in _OWN}, where)
    flags = {**base, **own}
    if len(flags) > _MAX_FLAGS:
        raise LotteryError(f"{where} has {len(flags)} flags; give at most {_MAX_FLAGS}")
    if "arch" not in flags:
        raise LotteryError(f"{where} has no arch; give it there or under base")
    for name, values in crossed(flags).items():
        if not values:
            raise LotteryError(f"{where}: the list of {name} is empty: nothing to run")
    for arch in crossed(flags).get("arch", [flags["arch"]]):
        if not isinstance(arch, str):
            raise LotteryError(
                f"{where}: arch is {shown(arch)}; give the name of an architecture"
            )
    return flags


def _seeds_of(
    variant: str, given: Dict[str, Any], content: Dict[str, Any]
) -> List[int]:
    where = f"variant {variant}"
    seeds = given.get("seeds", content.get("seeds", [1]))
    seeds = seeds if isinstance(seeds, list) else [seeds]
    if not seeds:
        raise LotteryError(f"{where}: the list of seeds is empty: nothing to run")
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed < 1 << 32:
            raise LotteryError(
                f"{where}: seed {shown(seed)} is not a whole number from 0 on, below"
                " 2^32"
            )
    return seeds


def _check_count(runs: int) -> None:
    """Refuse too many runs before they are made: short lists multiply quickly."""
    if runs > _MAX_RUNS:
        raise LotteryError(
            f"it has {runs:,} runs, a grid at most {_MAX_RUNS:,}: shorten its lists, or"
            " make several grids"
        )


def _generate_flags(content: Dict[str, Any]) -> Optional[Flags]:
    given = content.get("generate")
    if given is False:
        return None
    if not isinstance(given, (dict, type(None))):
        raise LotteryError(
            f"generate is {shown(given)}; give flags of fairseq-generate, or no"
        )
    flags = flags_in(given or {}, "generate")
    for name in crossed(flags):
        raise LotteryError(f"generate: {name} is a list; give one value")
    return command_line_flags(flags)


def _check_data(folder: Path) -> None:
    if not folder.is_dir():
        raise LotteryError(
            f"data {folder} is not a folder; prepare it with fairseq-preprocess, or"
            " name another one with --data FOLDER"
        )
    if not any(folder.rglob("train.*.idx")) and not any(folder.rglob("train.idx")):
        raise LotteryError(
            f"data {folder} holds no binarised training data (train.*.idx); prepare it"
            " with fairseq-preprocess"
        )
