"""The targets: each a row, measured against the stock dense model in the same run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Tuple

from measure import FEWEST_ROUNDS, Row, interleave, ratios, say
from models import (
    KINDS,
    LENGTH,
    RESERVOIRS,
    Shape,
    Size,
    batch,
    build_trainer,
    named_size,
    text,
)

from onelayer_lottery.checkpoint.reading import load_checkpoint
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.conversion.tasks import translation_dictionaries
from onelayer_lottery.conversion.to_checkpoint import checkpoint_from_ticket
from onelayer_lottery.conversion.to_model import baked_model
from onelayer_lottery.frozen import spec

FREQUENCY = 8  # of --update-freq
SENTENCES = 16  # that are translated together
MB = 1e6


@dataclass(frozen=True)
class Plan:
    """How large everything is, and how often it is measured."""

    size: Size
    name: str
    largest: Size  # whose frozen weights are drawn
    rounds: int
    short_rounds: int  # of a step of 512 tokens, which takes little time
    memory_rounds: int
    scaling_rounds: int
    tokens: Tuple[int, ...]
    widths: Tuple[int, ...]
    depths: Tuple[int, ...]
    mask_layers: Tuple[int, ...]
    mask_symbols: Tuple[int, ...]
    kinds: Tuple[str, ...] = KINDS  # of models whose steps are compared


FULL = Plan(
    size=named_size("small"),
    name="small",
    largest=named_size("wider"),
    rounds=9,
    short_rounds=25,
    memory_rounds=FEWEST_ROUNDS,
    scaling_rounds=3,
    tokens=(256, 512, 1024, 2048, 4096),
    widths=(128, 256, 512, 1024),
    depths=(1, 3, 6, 12),
    mask_layers=(1, 3, 6, 12, 24),
    mask_symbols=(2000, 4000, 8000, 16000, 32000, 64000),
)
_TOY = Size(Shape(16, 32, 2, 1), (60, 50))
QUICK = Plan(
    size=_TOY,
    name="toy",
    largest=_TOY,
    rounds=FEWEST_ROUNDS,
    short_rounds=FEWEST_ROUNDS,
    memory_rounds=1,
    scaling_rounds=2,
    tokens=(64, 128, 256),
    widths=(8, 16),
    depths=(1, 2),
    mask_layers=(1, 2, 3),
    mask_symbols=(50, 100, 200),
)


def step_seconds(
    size: Size,
    tokens: int,
    *,
    rounds: int,
    warm_up: int,
    kinds: Tuple[str, ...] = KINDS,
) -> Dict[str, List[float]]:
    """Seconds of a training step of each kind of model, side by side.

    What was measured before in this run is not measured again.
    """
    key = (size, tokens, kinds)
    if key not in _STEPS:
        _STEPS[key] = _measure_steps(size, tokens, rounds, warm_up, kinds)
    return _STEPS[key]


_STEPS: Dict[Tuple, Dict[str, List[float]]] = {}


def _measure_steps(
    size: Size, tokens: int, rounds: int, warm_up: int, kinds: Tuple[str, ...]
) -> Dict[str, List[float]]:
    batches = [batch(tokens, size, seed=seed) for seed in range(4)]

    def stepper(kind: str) -> Callable[[], None]:
        trainer = build_trainer(kind, size)
        return lambda: trainer.train_step([batches[trainer.get_num_updates() % 4]])

    shape = size.shape
    title = f"step, width {shape.width}, {shape.layers} layers, {tokens} tokens"
    works = {kind: stepper(kind) for kind in kinds}
    return interleave(works, rounds, title=title, warm_up=warm_up)


def planned_step_seconds(plan: Plan, tokens: int) -> Dict[str, List[float]]:
    rounds = plan.short_rounds if tokens <= 512 else plan.rounds
    return step_seconds(plan.size, tokens, rounds=rounds, warm_up=2, kinds=plan.kinds)


def step(plan: Plan, name: str, *, tokens: int, target: float) -> Row:
    seconds = planned_step_seconds(plan, tokens)
    return Row(
        name=name,
        what=f"training step, {plan.name}, {tokens} tokens, ours / dense",
        target=target,
        values=ratios(seconds["ours"], seconds["dense"]),
        measured=seconds,
    )


def sort(plan: Plan, name: str, *, tokens: int, target: float) -> Row:
    seconds = planned_step_seconds(plan, tokens)
    return Row(
        name=name,
        what=f"training step, {plan.name}, {tokens} tokens, full sort / ours",
        target=target,
        at_most=False,
        values=ratios(seconds["sort"], seconds["ours"]),
        measured=seconds,
    )


def update_freq(plan: Plan, name: str) -> Row:
    """Steps of 512 tokens: the smaller they are, the more a mask weighs."""
    parts = [batch(512, plan.size, seed=seed) for seed in range(FREQUENCY)]
    trainers = {kind: build_trainer(kind, plan.size) for kind in ("dense", "ours")}
    works = {kind: partial(t.train_step, parts) for kind, t in trainers.items()}
    seconds = interleave(works, plan.rounds, title=name)
    return Row(
        name=name,
        what=f"update of {FREQUENCY} batches of 512 tokens, ours / dense",
        target=1.03,
        values=ratios(seconds["ours"], seconds["dense"]),
        measured=seconds,
    )


@lru_cache(maxsize=None)
def generation_seconds(size: Size, rounds: int) -> Dict[str, List[float]]:
    """Seconds of beam search by each model, of the same number of symbols."""
    dense, ours = (build_trainer(kind, size) for kind in ("dense", "ours"))
    ours.train_step([batch(512, size)])
    models = {"dense": dense.model, "ours": ours.model}
    with saved(ours) as path:
        texts = [text(side) for side in (ours.task.src_dict, ours.task.tgt_dict)]
        ticket = ticket_from_checkpoint(
            load_checkpoint(path),
            dictionaries=translation_dictionaries("de", "en", *texts),
        )
    models["baked"], _ = baked_model(ticket)
    models["restored"] = build_trainer("ours", size).model
    models["restored"].load_state_dict(checkpoint_from_ticket(ticket)["model"])
    # As long as the longest: nothing ends earlier, whatever the model says.
    flags = Namespace(beam=5, max_len_a=0, max_len_b=LENGTH, min_len=LENGTH)
    sample = batch(SENTENCES * LENGTH, size)

    def work(model: Any) -> Callable[[], Any]:
        model.eval()
        model.prepare_for_inference_(ours.cfg)
        generator = ours.task.build_generator([model], flags)
        return partial(ours.task.inference_step, generator, [model], sample)

    works = {kind: work(model) for kind, model in models.items()}
    lengths = {
        kind: {len(h["tokens"]) for found in run() for h in found}
        for kind, run in works.items()
    }
    if any(found != {LENGTH + 1} for found in lengths.values()):
        raise RuntimeError(f"the models generate different lengths: {lengths}")
    return interleave(works, rounds, title="generation", warm_up=0)


def generate(plan: Plan, name: str, *, kind: str, target: float) -> Row:
    seconds = generation_seconds(plan.size, plan.rounds)
    return Row(
        name=name,
        what=f"beam-5 generation, {kind} / dense",
        target=target,
        noise_aside=kind != "ours",
        values=ratios(seconds[kind], seconds["dense"]),
        measured=seconds,
    )


def build(plan: Plan, name: str) -> Row:
    """Of a whole build, the seconds that the frozen weights take."""
    measured: Dict[str, List[float]] = {"frozen": [], "ours": [], "dense": []}
    for number in range(FEWEST_ROUNDS):
        say(f"{name}: round {number + 1} of {FEWEST_ROUNDS}")
        with timed_frozen_weights() as frozen:
            for kind in ("dense", "ours"):
                started = time.perf_counter()
                build_trainer(kind, plan.largest)
                measured[kind].append(time.perf_counter() - started)
        measured["frozen"].append(sum(frozen))
    whole = {kind: median(measured[kind]) for kind in ("ours", "dense")}
    return Row(
        name=name,
        what="drawing the frozen weights of wider",
        target=3,
        unit=" s",
        values=measured["frozen"],
        measured=measured,
        detail=f"whole model {whole['ours']:.1f} s, stock dense {whole['dense']:.1f} s",
    )


def memory(plan: Plan, name: str) -> Row:
    """A process for each model and round, with the system's allocator as it is.

    That one keeps freed memory for later; what is left if it gives all back at once
    is measured once beside it.
    """
    measured: Dict[str, List[float]] = {"ours": [], "dense": [], "libraries": []}
    for number in range(plan.memory_rounds):
        say(f"{name}: round {number + 1} of {plan.memory_rounds}")
        for kind in ("dense", "ours"):
            peak, libraries = peak_memory(kind, plan.size)
            measured[kind].append(peak)
        measured["libraries"].append(libraries)
    say(f"{name}: with freed memory given back")
    for kind in ("dense", "ours"):
        peak, _ = peak_memory(kind, plan.size, **GIVE_BACK)
        measured[f"{kind}, given back"] = [peak]
    middle = {kind: median(values) / MB for kind, values in measured.items()}
    least = [middle[f"{kind}, given back"] for kind in ("ours", "dense")]
    return Row(
        name=name,
        what=f"peak memory of a step, {plan.name}, 4096 tokens, ours / dense",
        target=1.15,
        values=ratios(measured["ours"], measured["dense"]),
        measured=measured,
        detail=f"whole process {middle['ours']:.0f} and {middle['dense']:.0f} MB, of it"
        f" {middle['libraries']:.0f} MB libraries; with "
        + " ".join(f"{key}={value}" for key, value in GIVE_BACK.items())
        + f" {least[0]:.0f} and {least[1]:.0f} MB, {least[0] / least[1]:.3f}x",
    )


# Settings of glibc: large blocks come from the system and go back to it when freed.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def peak_memory(kind: str, size: Size, **environment: str) -> Tuple[int, int]:
    """Peak bytes of a process that makes a step, and those of its libraries."""
    script = Path(__file__).with_name("memory.py")
    words = [sys.executable, script, kind, 4096, *size.shape, *size.vocabulary]
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        check=True,
    )
    peak, libraries = map(int, done.stdout.split())
    return peak, libraries


def checkpoint(plan: Plan, name: str) -> Row:
    sizes: Dict[str, List[float]] = {}
    for kind in ("dense", "ours"):
        trainer = build_trainer(kind, plan.size)
        trainer.train_step([batch(64, plan.size)])
        with saved(trainer) as path:
            sizes[kind] = [path.stat().st_size]
    return Row(
        name=name,
        what=f"checkpoint with optimizer state, {plan.name}, fp32, ours / dense",
        target=1.0,
        exact=True,
        values=ratios(sizes["ours"], sizes["dense"]),
        measured=sizes,
        detail=f"{sizes['ours'][0]:,} and {sizes['dense'][0]:,} bytes",
    )


@lru_cache(maxsize=None)
def reservoir_seconds(size: Size, tokens: int, rounds: int) -> Dict[str, List[float]]:
    """Seconds of an update, all layers trained or half of them."""
    sample = [batch(tokens, size)]
    trainers = {kind: build_trainer(kind, size) for kind in ("dense", *RESERVOIRS)}
    works = {kind: partial(t.train_step, sample) for kind, t in trainers.items()}
    return interleave(works, rounds, title="reservoir step", warm_up=2)


@lru_cache(maxsize=None)
def reservoir_memory(size: Size, rounds: int) -> Dict[str, List[float]]:
    """Peak bytes of processes that make such updates, of 4096 tokens."""
    peaks: Dict[str, List[float]] = {kind: [] for kind in ("dense", *RESERVOIRS)}
    for number in range(rounds):
        say(f"reservoir memory: round {number + 1} of {rounds}")
        for kind, found in peaks.items():
            found.append(peak_memory(kind, size)[0])
    return peaks


def reservoir(plan: Plan, name: str, *, kind: str, memory: bool = False) -> Row:
    """Every second layer random, against all trained; the toy has two of them."""
    shape = plan.size.shape
    size = plan.size._replace(shape=shape._replace(layers=max(2, shape.layers)))
    if memory:
        tokens = 4096
        measured = reservoir_memory(size, plan.memory_rounds)
        detail = ", ".join(f"{k} {median(v) / MB:.0f} MB" for k, v in measured.items())
    else:
        tokens = plan.tokens[-1]
        measured = reservoir_seconds(size, tokens, plan.rounds)
        detail = ", ".join(f"{k} {median(v):.3f} s" for k, v in measured.items())
    what = "peak memory of an update" if memory else "update"
    return Row(
        name=name,
        what=f"{what}, {plan.name}, {tokens} tokens, reservoirs ({kind}) / all trained",
        target=1.0,
        values=ratios(measured[kind], measured["dense"]),
        measured=measured,
        detail=detail,
    )


ROWS: Dict[str, Callable[[Plan, str], Row]] = {
    "step-4096": partial(step, tokens=4096, target=1.02),
    "step-512": partial(step, tokens=512, target=1.08),
    "sort-4096": partial(sort, tokens=4096, target=1.7),
    "sort-512": partial(sort, tokens=512, target=5.0),
    "generate": partial(generate, kind="ours", target=1.02),
    "generate-baked": partial(generate, kind="baked", target=1.00),
    "generate-restored": partial(generate, kind="restored", target=1.00),
    "update-freq": update_freq,
    "build": build,
    "memory": memory,
    "checkpoint": checkpoint,
    "reservoir-exact": partial(reservoir, kind="exact"),
    "reservoir-skip": partial(reservoir, kind="skip"),
    "reservoir-exact-memory": partial(reservoir, kind="exact", memory=True),
    "reservoir-skip-memory": partial(reservoir, kind="skip", memory=True),
}


@contextmanager
def saved(trainer: Any) -> Iterator[Path]:
    """The trainer's own checkpoint, as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        trainer.consolidate_optimizer()
        trainer.save_checkpoint(str(path), {"epoch": 1})
        yield path


@contextmanager
def timed_frozen_weights() -> Iterator[List[float]]:
    """Time each drawing of a frozen weight while a model is planted."""
    draw, seconds = spec.frozen_weight, []

    def timed(*words: Any, **flags: Any) -> Any:
        started = time.perf_counter()
        weight = draw(*words, **flags)
        seconds.append(time.perf_counter() - started)
        return weight

    spec.frozen_weight = timed
    try:
        yield seconds
    finally:
        spec.frozen_weight = draw
