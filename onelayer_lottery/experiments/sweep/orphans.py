"""End a child process when its parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Callable

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in linux/prctl.h


def dying_with_parent() -> Callable[[], None]:
    """Return a ``preexec_fn`` that ties a child to the process that calls this.

    When that process ends, in whatever way, Linux kills the child. A parent that ended
    before the child was ready is noticed too.
    """
    parent = os.getpid()

    def ask() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return ask
