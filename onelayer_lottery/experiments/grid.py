"""A grid file in YAML, and the runs that it stands for.

A grid is trusted like a shell script: its flags become commands, and fairseq evaluates
some of their values as Python.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from onelayer_lottery.errors import LotteryError
from onelayer_lottery.experiments.grid_file import read_yaml
from onelayer_lottery.experiments.table1 import PAPER

Flags = Dict[str, Union[str, bool]]

_KEYS = (
    *("figure", "title", "corpus", "data", "reference", "gpus", "seeds"),
    *("base", "variants", "generate", "average"),
)
# Keys of a variant that are not flags of fairseq.
_OWN = ("label", "seeds", "table1")
# Flags that the sweep gives, and what to do instead.
_TAKEN = {
    "seed": "list the seeds under seeds",
    "mask-seed": "list the seeds under seeds",
    "data": "name the folder under data",
    "save-dir": "each run has a folder of its own",
    "path": "the best checkpoint of the run is used",
    "results-path": "each run has a folder of its own",
    "user-dir": "it is this package",
    "log-format": "the sweep reads the log",
    "log-file": "the log is in the folder of the run",
    "tensorboard-logdir": "the log is in the folder of the run",
    "cpu": "a CPU is used where there is no GPU",
}
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_MAX_RUNS = 10_000
_MAX_FLAGS = 500  # of a run; fairseq has fewer
_MAX_WHOLE = 10_000


@dataclass(frozen=True)
class Run:
    """One training: its flags, and what it needs before it can start."""

    id: str  # of the configuration: equal runs of two grids are one run
    name: str  # readable
    variant: str
    seed: int
    train: Flags  # of fairseq-train; ${ID} is the checkpoint of another run
    generate: Optional[Flags]  # of fairseq-generate; None: nothing is generated
    average: int  # so many last checkpoints are averaged; 0: the best one is used
    needs: Tuple[str, ...]  # ids of other runs


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
    gpus: int  # of each run
    variants: Tuple[Variant, ...]
    runs: Tuple[Run, ...]  # two variants may have the same run


def read_grid(path: Path, *, data: Optional[Path] = None) -> Grid:
    """Read and expand a grid file; ``data`` takes the place of its data folder."""
    content = read_yaml(path)
    try:
        return _grid(path.stem, content, data)
    except LotteryError as error:
        raise LotteryError(f"{path}: {error}") from None


def data_digest(data: Path) -> str:
    """A digest of prepared data: their dictionaries, and the sizes of all files."""
    seen = hashlib.sha256()
    for file in sorted(data.rglob("*")):
        if file.suffix in (".bin", ".idx") or file.name.startswith("dict."):
            seen.update(f"{file.relative_to(data)} {file.stat().st_size}\n".encode())
            if file.name.startswith("dict."):
                seen.update(file.read_bytes())
    return seen.hexdigest()[:16]


def words_of(flags: Flags) -> List[str]:
    """Flags as words of a command line."""
    words = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif str(value).startswith("-"):
            words.append(f"--{name}={value}")
        else:
            words += [f"--{name}", str(value)]
    return words


def _grid(name: str, content: Dict[str, Any], data: Optional[Path]) -> Grid:
    _refuse_unknown(content, _KEYS, "key")
    named = _text(content, "data", "")
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
    variants = _section(content, "variants")
    if not variants:
        raise LotteryError("it has no variants: nothing to run")
    _check_count(len(variants))
    for variant, given in variants.items():
        if not isinstance(given, (dict, type(None))):
            raise LotteryError(f"variant {variant} is not a mapping of flags to values")
    base = _flags(_section(content, "base"), "base")
    flags = {n: _flags_of(n, given or {}, base) for n, given in variants.items()}
    seeds = {n: _seeds_of(n, given or {}, content) for n, given in variants.items()}
    _check_count(
        sum(
            len(seeds[n]) * math.prod(map(len, _crossed(flags[n]).values()))
            for n in variants
        )
    )
    generate, average = _generate_flags(content), _whole(content, "average", 0)
    runs: List[Run] = []
    above: Dict[Tuple[str, Optional[int]], List[Run]] = {}
    for variant in variants:
        made = [
            _identified(replace(run, generate=generate, average=average), digest)
            for run in _runs_of(variant, flags[variant], seeds[variant], above)
        ]
        for run in made:
            above.setdefault((variant, run.seed), []).append(run)
        above[variant, None] = made
        runs += made
    return Grid(
        name=name,
        title=_text(content, "title", name),
        figure=_whole(content, "figure", None),
        corpus=_text(content, "corpus", folder.name),
        data=folder,
        reference=reference,
        gpus=_whole(content, "gpus", 1),
        variants=tuple(_variant(name, given or {}) for name, given in variants.items()),
        runs=tuple(runs),
    )


def _reference(content: Dict[str, Any], folder: Path) -> Optional[Path]:
    name = _text(content, "reference", "")
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
    label = _text(given, "label", name, where=f"variant {name}: ")
    return Variant(name, label, given.get("table1"))


def _flags_of(
    variant: str, given: Dict[str, Any], base: Dict[str, Any]
) -> Dict[str, Any]:
    where = f"variant {variant}"
    own = _flags({k: v for k, v in given.items() if k not in _OWN}, where)
    flags = {**base, **own}
    if len(flags) > _MAX_FLAGS:
        raise LotteryError(f"{where} has {len(flags)} flags; give at most {_MAX_FLAGS}")
    if "arch" not in flags:
        raise LotteryError(f"{where} has no arch; give it there or under base")
    for name, values in _crossed(flags).items():
        if not values:
            raise LotteryError(f"{where}: the list of {name} is empty: nothing to run")
    for arch in _crossed(flags).get("arch", [flags["arch"]]):
        if not isinstance(arch, str):
            raise LotteryError(
                f"{where}: arch is {_shown(arch)}; give the name of an architecture"
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
                f"{where}: seed {_shown(seed)} is not a whole number from 0 on, below"
                " 2^32"
            )
    return seeds


def _crossed(flags: Dict[str, Any]) -> Dict[str, List[Any]]:
    return {name: value for name, value in flags.items() if isinstance(value, list)}


def _check_count(runs: int) -> None:
    """Before they are made: a few short lists multiply to more than any memory."""
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
            f"generate is {_shown(given)}; give flags of fairseq-generate, or no"
        )
    flags = _flags(given or {}, "generate")
    for name in _crossed(flags):
        raise LotteryError(f"generate: {name} is a list; give one value")
    return _plain(flags)


def _runs_of(
    variant: str,
    flags: Dict[str, Any],
    seeds: List[int],
    above: Dict[Tuple[str, Optional[int]], List[Run]],
) -> Iterator[Run]:
    crossed = _crossed(flags)
    for seed in seeds:
        for values in product(*crossed.values()):
            chosen = dict(zip(crossed, values))
            train = _plain({**flags, **chosen})
            needs = _resolve(train, above, seed=seed, where=f"variant {variant}")
            yield Run(
                id="",
                name="-".join([variant, *(f"{n}-{v}" for n, v in chosen.items())]),
                variant=variant,
                seed=seed,
                train=train,
                generate=None,
                average=0,
                needs=needs,
            )


def _identified(run: Run, digest: str) -> Run:
    parts = [run.train, run.generate, run.average, run.seed, digest]
    text = json.dumps(parts, sort_keys=True)
    code = hashlib.sha256(text.encode()).hexdigest()[:10]
    readable = re.sub(r"[^\w.=+-]+", "_", run.name.replace("mask-", ""))[:80]
    return replace(run, id=code, name=f"{readable}-seed-{run.seed}-{code}")


def _resolve(
    train: Flags,
    above: Dict[Tuple[str, Optional[int]], List[Run]],
    *,
    seed: int,
    where: str,
) -> Tuple[str, ...]:
    """Replace ${VARIANT} by ${ID} of its run with the same seed, or its only run."""
    needs = []
    for name, value in train.items():
        found = _REFERENCE.fullmatch(str(value))
        if not found:
            continue
        runs = above.get((found[1], None))
        if not runs:
            raise LotteryError(
                f"{where}: {name} is {value}, but no variant above it has that name"
            )
        same = above.get((found[1], seed), []) if len(runs) > 1 else runs
        if len(same) != 1:
            raise LotteryError(
                f"{where}: {name} is {value}, which has {len(same)} runs with seed"
                f" {seed}; it must have exactly one, or only one at all"
            )
        train[name] = f"${{{same[0].id}}}"
        needs.append(same[0].id)
    return tuple(dict.fromkeys(needs))


def _flags(section: Dict[str, Any], where: str) -> Dict[str, Any]:
    flags: Dict[str, Any] = {}
    for key, value in section.items():
        name = key.lstrip("-").replace("_", "-")
        if name in _TAKEN:
            raise LotteryError(f"{where}: leave out {key}: {_TAKEN[name]}")
        if not _FLAG.fullmatch(name):
            raise LotteryError(
                f"{where}: {_shown(key)} is not the name of a flag; give one of fairseq"
            )
        if name in flags:
            raise LotteryError(f"{where} has {name} twice")
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, (dict, list)) for item in values):
            raise LotteryError(
                f"{where}: {key} holds a list or a mapping; give a value, or a list of"
                " values"
            )
        flags[name] = value
    return flags


def _plain(flags: Dict[str, Any]) -> Flags:
    """Values as the command line has them; without those that are off or null."""
    return {
        name: value if value is True else str(value)
        for name, value in flags.items()
        if value is not None and value is not False
    }


def _section(content: Dict[str, Any], key: str) -> Dict[str, Any]:
    section = content.get(key)
    if not isinstance(section, (dict, type(None))):
        raise LotteryError(f"{key} is not a mapping of names to values")
    return section or {}


def _text(content: Dict[str, Any], key: str, default: str, *, where: str = "") -> str:
    value = content.get(key)
    if isinstance(value, (dict, list)):
        raise LotteryError(f"{where}{key} is {_shown(value)}; give text")
    return default if value is None else str(value)


def _whole(content: Dict[str, Any], key: str, default: Any) -> Any:
    if key not in content:
        return default
    value = content[key]
    if type(value) is not int or not 1 <= value <= _MAX_WHOLE:
        raise LotteryError(
            f"{key} is {_shown(value)}; give a whole number from 1 to {_MAX_WHOLE}"
        )
    return value


def _shown(value: Any) -> str:
    return reprlib.repr(value)


def _refuse_unknown(content: Dict[str, Any], known: Tuple[str, ...], what: str) -> None:
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise LotteryError(
            f"unknown {what} {', '.join(unknown)}; known are {', '.join(known)}"
            " (flags of fairseq go under base or a variant)"
        )


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
