"""Runs are compared with each other: each layer's first kernel, not the fastest on the day."""

from collections.abc import Iterator

import pytest

from plumbline.gradients import KERNELS


@pytest.fixture(autouse=True, scope="module")
def _fixed_kernels() -> Iterator[None]:
    KERNELS.forget()
    KERNELS.measure = False
    yield
    KERNELS.forget()
