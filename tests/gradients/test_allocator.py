"""The C library keeps freed memory, and gives it back when asked to."""

import platform

import pytest
import torch

from plumbline.gradients import release_memory
from plumbline.gradients.allocator import keep_freed_memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@glibc
def test_freed_memory_is_kept_until_released() -> None:
    assert keep_freed_memory()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    full = resident()
    del block
    assert full - resident() < 16 << 20
    release_memory()
    assert full - resident() > 32 << 20
