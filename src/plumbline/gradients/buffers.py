"""Large temporaries used again from step to step.

A fresh allocation of some megabytes is mapped and zeroed by the operating system page by page,
which can take longer than filling it. ``take`` hands out a block that nobody uses any more: one
whose storage has no owner left but this table, views included, so a caller is never surprised.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

_SMALL = 1 << 18
_OURS = 2  # the table's own tensor, and the handle through which the count is read


class Buffers:
    """Blocks of memory by type and device."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor; its memory returns by itself when the last view is gone."""
        numel = math.prod(shape)
        if numel * dtype.itemsize < _SMALL:
            return torch.empty(shape, dtype=dtype, device=device)
        blocks = self._blocks.setdefault((dtype, device), [])
        free = [block for block in blocks if _unused(block)]
        fitting = [block for block in free if numel <= block.numel() <= 2 * numel]
        if fitting:
            block = min(fitting, key=Tensor.numel)
        else:
            # What is free and does not fit belongs to other shapes, perhaps of another model:
            # let the largest go, so that the table does not outgrow what is in use.
            if free:
                largest = max(free, key=Tensor.numel)
                blocks[:] = [kept for kept in blocks if kept is not largest]
            block = torch.empty(numel + numel // 4, dtype=dtype, device=device)
            blocks.append(block)
        return block[:numel].view(*shape)

    def release(self) -> None:
        """Gives all memory that is not in use back to the system."""
        for blocks in self._blocks.values():
            blocks[:] = [block for block in blocks if not _unused(block)]


def _unused(block: Tensor) -> bool:
    return bool(torch._C._storage_Use_Count(block.untyped_storage()._cdata) <= _OURS)


BUFFERS = Buffers()
"""The process's one table."""


@cache
def keep_freed_memory() -> bool:
    """Asks the C library to keep memory that is freed, for the next step; once per process.

    A training step frees hundreds of megabytes and takes the same sizes again right after. The GNU
    C library by default gives large blocks back to the system in between, and faulting their pages
    in anew took a quarter of a private ResNet-20 step. Peak memory does not change; between steps
    the process keeps it. ``release_memory`` gives it back.

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
    BUFFERS.release()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in malloc.h
_NEVER = 2**31 - 1
