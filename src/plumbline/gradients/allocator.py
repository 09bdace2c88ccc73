"""Memory that one step frees and the next takes again.

A training step frees hundreds of megabytes and takes the same sizes again right after. The GNU C
library by default gives large blocks back to the system in between, and faulting their pages in
anew took a quarter of a private ResNet-20 step. Here it is asked to keep them.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache


@cache
def keep_freed_memory() -> bool:
    """Asks the C library to keep memory that is freed, for the next step; once per process.

    Peak memory does not change; between steps the process holds it. ``release_memory`` gives back
    what is not in use.

    Returns:
        Whether the C library could be asked.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # another C library: nothing to ask for
    return bool(mallopt(_M_MMAP_THRESHOLD, _NEVER) and mallopt(_M_TRIM_THRESHOLD, _NEVER))


def release_memory() -> None:
    """Gives memory that is not in use back to the system."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in malloc.h
_NEVER = 2**31 - 1
