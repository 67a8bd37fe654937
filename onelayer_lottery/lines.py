"""Lines of text as they come, in groups that do not wait for more."""

from __future__ import annotations

from queue import Empty, Queue
from threading import Thread
from typing import Iterable, Iterator, List

_LARGEST_BATCH = 64  # lines that are taken together, if so many are waiting
_END = object()


def waiting_lines(lines: Iterable[str]) -> Iterator[List[str]]:
    """Group lines as they come: those that wait go together, none waits for more."""
    queue: Queue = Queue(maxsize=4 * _LARGEST_BATCH)

    def fill() -> None:
        try:
            for line in lines:
                queue.put(line.rstrip("\r\n"))
        except OSError as error:  # for who waits, not for this thread
            queue.put(error)
        finally:
            queue.put(_END)

    Thread(target=fill, daemon=True).start()
    group: List[str] = []
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
        if len(group) == _LARGEST_BATCH:
            yield group
            group = []
    if group:
        yield group
