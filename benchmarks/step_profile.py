"""Where the time of a training step goes, by torch's profiler."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Any, Iterator

from measure import markdown, say
from models import Size, batch, build_trainer
from torch.profiler import ProfilerActivity, profile, record_function

from onelayer_lottery.core import methods

STEPS = 3
WRITING = "mask writing"
# What an event is a part of: the first of these whose word is in the name of the event
# or, if there is none, of the one that it runs inside.
PARTS = {
    WRITING: (WRITING,),
    "straight-through backward": ("_StraightThrough",),
    "optimizer": ("Optimizer.step", "optimizer"),
    "gradient norm, scaling, zeroing": ("multiply-grads", "clip-grads", "zero_grad"),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "loss (log-softmax and sums)": ("log_softmax", "LogSoftmax", "nll_loss"),
    "softmax of attention": ("softmax", "Softmax"),
    "dropout": ("dropout", "native_dropout", "bernoulli"),
    "norms": ("layer_norm", "LayerNorm"),
    "lookup of embeddings": ("embedding", "Embedding"),
}
REST = "rest (additions, copies, Python)"


def profile_table(size: Size, tokens: int) -> str:
    """Milliseconds per step and share of each part, dense and ours."""
    times = {kind: step_parts(kind, size, tokens) for kind in ("dense", "ours")}
    whole = {kind: sum(parts.values()) for kind, parts in times.items()}

    def cells(name: str, of: Any) -> list:
        return [
            name,
            *(f"{of(kind):.0f} ms, {of(kind) / whole[kind]:.1%}" for kind in times),
        ]

    lines = [
        cells(part, lambda kind, part=part: times[kind][part])
        for part in (*PARTS, REST)
        if any(times[kind][part] for kind in times)
    ]
    lines.append(cells("whole step", whole.get))
    return markdown([f"{tokens} tokens", *times], lines)


def step_parts(kind: str, size: Size, tokens: int) -> Counter:
    """Milliseconds of each part in a step, the mean of some after two others."""
    say(f"profiling {kind}, {tokens} tokens")
    trainer = build_trainer(kind, size)
    samples = [batch(tokens, size)]
    for _ in range(2):
        trainer.train_step(samples)
    with marked_mask_writing(), profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(STEPS):
            with record_function("step"):
                trainer.train_step(samples)
    parts: Counter = Counter()
    for event in seen.events():
        parts[part_of(event)] += event.self_cpu_time_total / 1e3 / STEPS
    return parts


def part_of(event: Any) -> str:
    while event is not None:
        for part, words in PARTS.items():
            if any(word in event.name for word in words):
                return part
        event = event.cpu_parent
    return REST


@contextmanager
def marked_mask_writing() -> Iterator[None]:
    """Mark the writing of masks for the profiler, which does not see compiled loops."""
    write = methods.write_masked

    def marked(*words: Any, **flags: Any) -> Any:
        with record_function(WRITING):
            return write(*words, **flags)

    methods.write_masked = marked
    try:
        yield
    finally:
        methods.write_masked = write
