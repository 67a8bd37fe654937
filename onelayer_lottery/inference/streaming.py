"""Group lines of text as they arrive, without waiting for more."""

from __future__ import annotations

from queue import Empty, Queue
from threading import Thread
from typing import Iterable, Iterator, List

# Most lines in a group: few at first, for an early answer, then more, for fuller
# batches.
_FIRST_GROUP, _LARGEST_GROUP = 64, 512
_END = object()


def waiting_lines(lines: Iterable[str]) -> Iterator[List[str]]:
    """Yield whatever lines are available; never wait to fill a group."""
    queue: Queue = Queue(maxsize=2 * _LARGEST_GROUP)

    def fill() -> None:
        try:
            for line in lines:
                queue.put(line.rstrip("\r\n"))
        except OSError as error:  # raised again below, in the caller's thread
            queue.put(error)
        finally:
            queue.put(_END)

    Thread(target=fill, daemon=True).start()
    group: List[str] = []
    size = _FIRST_GROUP
    while True:
        try:
            line = queue.get(block=not group)
        except Empty:
            yield group
            group = []
            continue
        if line is _END:
            break
        if isinstance(line, OSError):
            raise line
        group.append(line)
        if len(group) == size:
            yield group
            group = []
            size = min(2 * size, _LARGEST_GROUP)
    if group:
        yield group
