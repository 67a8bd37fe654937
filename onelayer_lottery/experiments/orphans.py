"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Callable

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in linux/prctl.h


def dying_with_parent() -> Callable[[], None]:
    """What a child calls before it runs its program, as ``preexec_fn``.

    Linux then ends it when the process that calls this ends, however that ends. A
    parent that ended in between is noticed too.
    """
    parent = os.getpid()

    def ask() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return ask
