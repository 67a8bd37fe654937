"""Peak memory of training steps, in a process that does nothing else.

    python benchmarks/memory.py KIND TOKENS WIDTH FFN HEADS LAYERS SOURCE TARGET

Prints two numbers of bytes: the peak of the whole process, and what it held before the
model was built (libraries). A small step goes before, to make the optimizer's state.
"""

from __future__ import annotations

import sys
from pathlib import Path

from measure import hush_fairseq
from models import Shape, Size, batch, build_trainer


def main() -> None:
    hush_fairseq()
    kind, tokens, *numbers = sys.argv[1:]
    width, ffn, heads, layers, source, target = map(int, numbers)
    size = Size(Shape(width, ffn, heads, layers), (source, target))
    libraries = resident("VmRSS")
    trainer = build_trainer(kind, size)
    for number in (64, int(tokens)):
        trainer.train_step([batch(number, size)])
    print(resident("VmHWM"), libraries)


def resident(name: str) -> int:
    """Bytes of this process; getrusage would count the one that started it, too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status does not tell the memory of a process here")


if __name__ == "__main__":
    main()
