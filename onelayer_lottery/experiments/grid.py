"""A grid file in YAML, and the runs that it stands for."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from onelayer_lottery.errors import LotteryError
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
    content = _read_yaml(path)
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
    if not data and not content.get("data"):
        raise LotteryError("it names no data: add data: FOLDER, or pass --data FOLDER")
    folder = data or Path(str(content["data"]))
    _check_data(folder)
    reference = content.get("reference")
    if reference:
        reference = folder / str(reference)
        if not reference.is_file():
            raise LotteryError(
                f"reference {reference} is not a file; it is looked for in the folder"
                " of the data, one sentence a line"
            )
    variants = _section(content, "variants")
    if not variants:
        raise LotteryError("it has no variants: nothing to run")
    runs: List[Run] = []
    for variant, flags in variants.items():
        runs += _runs_of(str(variant), flags or {}, content, runs, data_digest(folder))
    return Grid(
        name=name,
        title=str(content.get("title", name)),
        figure=_whole(content, "figure", lowest=1) if "figure" in content else None,
        corpus=str(content.get("corpus", folder.name)),
        data=folder,
        reference=reference,
        gpus=_whole(content, "gpus", lowest=1) if "gpus" in content else 1,
        variants=tuple(
            Variant(
                str(name),
                str((flags or {}).get("label", name)),
                (flags or {}).get("table1"),
            )
            for name, flags in variants.items()
        ),
        runs=tuple(runs),
    )


def _runs_of(
    variant: str, given: Any, content: Dict[str, Any], above: List[Run], digest: str
) -> Iterator[Run]:
    if not isinstance(given, dict):
        raise LotteryError(f"variant {variant} is not a mapping of flags to values")
    where = f"variant {variant}"
    own = {name: given[name] for name in _OWN if name in given}
    flags = {
        **_flags(_section(content, "base"), "base"),
        **_flags({k: v for k, v in given.items() if k not in _OWN}, where),
    }
    if "arch" not in flags:
        raise LotteryError(f"{where} has no arch; give it there or under base")
    rows = [row.key for row in PAPER]
    if own.get("table1") not in (None, *rows):
        raise LotteryError(
            f"{where}: table1 is {own['table1']}; give one of {', '.join(rows)}"
        )
    seeds = own.get("seeds", content.get("seeds", [1]))
    seeds = seeds if isinstance(seeds, list) else [seeds]
    crossed = {name: value for name, value in flags.items() if isinstance(value, list)}
    for name, values in [*crossed.items(), ("seeds", seeds)]:
        if not values:
            raise LotteryError(f"{where}: the list of {name} is empty: nothing to run")
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise LotteryError(f"{where}: seed {seed!r} is not a whole number from 0")
    generate: Any = content.get("generate", {})
    average = _whole(content, "average", lowest=1) if "average" in content else 0
    for seed in seeds:
        for values in product(*crossed.values()):
            chosen = dict(zip(crossed, values))
            train = _plain({**flags, **chosen})
            needs = _resolve(train, above, seed=seed, where=where)
            yield _identified(
                Run(
                    id="",
                    name="-".join([variant, *(f"{n}-{v}" for n, v in chosen.items())]),
                    variant=variant,
                    seed=seed,
                    train=train,
                    generate=None
                    if generate is False
                    else _plain(_flags(generate or {}, "generate")),
                    average=average,
                    needs=needs,
                ),
                digest,
            )


def _identified(run: Run, digest: str) -> Run:
    parts = [run.train, run.generate, run.average, run.seed, digest]
    text = json.dumps(parts, sort_keys=True)
    code = hashlib.sha256(text.encode()).hexdigest()[:10]
    readable = re.sub(r"[^\w.=+-]+", "_", run.name.replace("mask-", ""))[:80]
    return replace(run, id=code, name=f"{readable}-seed-{run.seed}-{code}")


def _resolve(
    train: Flags, above: List[Run], *, seed: int, where: str
) -> Tuple[str, ...]:
    """Replace ${VARIANT} by ${ID} of its run with the same seed, or its only run."""
    needs = []
    for name, value in train.items():
        found = _REFERENCE.fullmatch(str(value))
        if not found:
            continue
        runs = [run for run in above if run.variant == found[1]]
        if not runs:
            raise LotteryError(
                f"{where}: {name} is {value}, but no variant above it has that name"
            )
        same = [run for run in runs if run.seed == seed] if len(runs) > 1 else runs
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
        name = str(key).lstrip("-").replace("_", "-")
        if name in _TAKEN:
            raise LotteryError(f"{where}: leave out {key}: {_TAKEN[name]}")
        if name in flags:
            raise LotteryError(f"{where} has {name} twice")
        if isinstance(value, dict):
            raise LotteryError(f"{where}: {key} is a mapping; give a value or a list")
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
    section = content.get(key) or {}
    if not isinstance(section, dict):
        raise LotteryError(f"{key} is not a mapping of names to values")
    return section


def _whole(content: Dict[str, Any], key: str, *, lowest: int) -> int:
    value = content[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise LotteryError(f"{key} is {value!r}; give a whole number from {lowest} on")
    return value


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


def _read_yaml(path: Path) -> Dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        twice = _repeated(yaml.compose(text, yaml.SafeLoader))
        content = yaml.safe_load(text)
    except OSError as error:
        raise LotteryError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LotteryError(f"{path} is not text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise LotteryError(f"{path}{line}: {problem}") from None
    if twice:
        raise LotteryError(f"{path}: {twice} comes twice in one mapping")
    if not isinstance(content, dict) or not content:
        raise LotteryError(f"{path} is empty: give data, base and variants")
    return content


def _repeated(node: Any) -> Optional[str]:
    """A key that comes twice in a mapping, of which YAML would let the last one win."""
    inner = node.value if node is not None and isinstance(node.value, list) else []
    keys = [pair[0].value for pair in inner if isinstance(pair, tuple)]
    for item in inner:
        for child in item if isinstance(item, tuple) else [item]:
            found = _repeated(child)
            if found:
                return found
    return next((str(key) for key in keys if keys.count(key) > 1), None)
