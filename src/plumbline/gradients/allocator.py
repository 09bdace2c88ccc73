"""Keeps the memory that one step frees for the next step.

A training step frees hundreds of megabytes and allocates the same sizes right after. By default the
GNU C library returns large blocks to the system in between, and faulting their pages in again took
a quarter of a private ResNet-20 step.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache


@cache
def keep_freed_memory() -> bool:
    """Tells the C library to keep freed memory for the next step; once per process.

    Peak memory does not change; the process holds it between steps. ``release_memory`` returns
    what is unused.

    Returns:
        Whether the C library supports this.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # another C library
    return bool(mallopt(_M_MMAP_THRESHOLD, _NEVER) and mallopt(_M_TRIM_THRESHOLD, _NEVER))


def release_memory() -> None:
    """Returns unused memory to the system."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in malloc.h
_NEVER = 2**31 - 1
