"""Threads for work in NumPy, which lets other threads run meanwhile."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Callable, List, Sequence, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> List[Result]:
    """Map in as many threads as torch has."""
    threads = torch.get_num_threads()
    if threads == 1 or len(items) == 1:
        return [work(item) for item in items]
    return list(_pool(os.getpid(), threads).map(work, items))


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this very process: a fork inherits a pool without its threads."""
    return ThreadPoolExecutor(threads)
