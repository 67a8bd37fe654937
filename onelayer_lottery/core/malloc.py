"""Settings of glibc's allocator that speed up training steps of few tokens."""

from __future__ import annotations

import ctypes
import os
import sys

OPT_OUT = "ONELAYER_LOTTERY_MALLOC"  # set it to 0 to leave the allocator alone

# Settings that the user chose already, which win.
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def tune_malloc(*, long_lived: bool) -> None:
    """Choose where glibc puts the blocks that are allocated from now on.

    The first update allocates what lasts: the masked weights and the state of the
    optimizer. Such blocks get pages of their own, because in the heap they would leave
    holes that are too small for the activations. Later updates allocate what is freed
    again: it comes from the heap, and the heap never shrinks. By default glibc returns
    freed memory to the system, and the page faults of getting it back took up to a
    tenth of a step of 512 tokens.

    Nothing happens with another allocator than glibc's, if the user has set glibc's own
    variables, or if ONELAYER_LOTTERY_MALLOC is 0.
    """
    if sys.platform != "linux" or os.environ.get(OPT_OUT) == "0":
        return
    if any(name in os.environ for name in _CHOSEN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, 64 << 10 if long_lived else 32 << 20)  # 32 MB at most
