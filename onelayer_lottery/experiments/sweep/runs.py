"""Runs: the trainings that the variants of a grid stand for."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from onelayer_lottery.errors import LotteryError

Flags = Dict[str, Union[str, bool]]
# The runs of the variants above, by variant and seed; with seed None, all of a variant.
Above = Dict[Tuple[str, Optional[int]], List["Run"]]

_REFERENCE = re.compile(r"\$\{([^}]*)\}")


@dataclass(frozen=True)
class Run:
    """One training: its flags, and what it needs before it can start."""

    id: str  # digest of the configuration: equal runs of two grids are one run
    name: str  # readable
    variant: str
    seed: int
    train: Flags  # of fairseq-train; ${ID} is the checkpoint of another run
    generate: Optional[Flags]  # of fairseq-generate; None: nothing is generated
    average: int  # number of last checkpoints to average; 0: use the best one
    needs: Tuple[str, ...]  # ids of other runs


def words_of(flags: Flags) -> List[str]:
    """Return flags as words of a command line."""
    words = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif str(value).startswith("-"):
            words.append(f"--{name}={value}")
        else:
            words += [f"--{name}", str(value)]
    return words


def crossed(flags: Dict[str, Any]) -> Dict[str, List[Any]]:
    """Return the flags that have a list of values: every combination is a run."""
    return {name: value for name, value in flags.items() if isinstance(value, list)}


def command_line_flags(flags: Dict[str, Any]) -> Flags:
    """Return values as the command line has them, without those that are off."""
    return {
        name: value if value is True else str(value)
        for name, value in flags.items()
        if value is not None and value is not False
    }


def runs_of(
    variant: str,
    flags: Dict[str, Any],
    seeds: List[int],
    above: Above,
) -> Iterator[Run]:
    """Yield the runs of a variant, without what all runs of a grid share."""
    lists = crossed(flags)
    for seed in seeds:
        for values in product(*lists.values()):
            chosen = dict(zip(lists, values))
            train = command_line_flags({**flags, **chosen})
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


def identified(run: Run, digest: str) -> Run:
    """Give a run its id and name; ``digest`` is that of its data."""
    parts = [run.train, run.generate, run.average, run.seed, digest]
    text = json.dumps(parts, sort_keys=True)
    code = hashlib.sha256(text.encode()).hexdigest()[:10]
    readable = re.sub(r"[^\w.=+-]+", "_", run.name.replace("mask-", ""))[:80]
    return replace(run, id=code, name=f"{readable}-seed-{run.seed}-{code}")


def _resolve(train: Flags, above: Above, *, seed: int, where: str) -> Tuple[str, ...]:
    """Replace ${VARIANT} by ${ID} of its run with the same seed, or its only run."""
    needs = []
    for name, value in train.items():
        match = _REFERENCE.fullmatch(str(value))
        if not match:
            continue
        runs = above.get((match[1], None))
        if not runs:
            raise LotteryError(
                f"{where}: {name} is {value}, but no variant above it has that name"
            )
        same = above.get((match[1], seed), []) if len(runs) > 1 else runs
        if len(same) != 1:
            raise LotteryError(
                f"{where}: {name} is {value}, which has {len(same)} runs with seed"
                f" {seed}; it must have exactly one, or only one at all"
            )
        train[name] = f"${{{same[0].id}}}"
        needs.append(same[0].id)
    return tuple(dict.fromkeys(needs))
