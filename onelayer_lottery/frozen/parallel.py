"""Run NumPy work in threads; NumPy releases the GIL."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Callable, List, Sequence, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> List[Result]:
    """Map in as many threads as torch uses; without torch, one for each CPU."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else os.cpu_count() or 1
    if threads == 1 or len(items) == 1:
        return [work(item) for item in items]
    return list(_pool(os.getpid(), threads).map(work, items))


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """A pool for this process: a fork inherits the pool, but not its threads."""
    return ThreadPoolExecutor(threads)
