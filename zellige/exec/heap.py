"""The C library's heap, kept: what a step frees, the next one finds mapped.

glibc gives large blocks, and the top of its heap, back to the system when they are freed, and each page costs a fault
when it is needed again: on a virtual machine 36 ms of a step of 590 ms, and 12 % of its time where sequences of many
lengths take turns (``docs/validate.md``). A GPU's caching allocator keeps what is freed as well.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of ``mallopt`` (man 3): the free top that makes a heap shrink, and how many blocks are mapped."""

NEVER, NONE = -1, 0


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, until it ends; False where the C library has no ``mallopt``."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, NONE)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
