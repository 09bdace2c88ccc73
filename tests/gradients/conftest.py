"""The engine's tests take each layer's first kernel, and name any other that they are about."""

from collections.abc import Iterator

import pytest

from plumbline.gradients import KERNELS


@pytest.fixture(autouse=True)
def _fixed_kernels() -> Iterator[None]:
    """Nothing is measured: a choice made by a clock would not be the same in every run."""
    KERNELS.forget()
    KERNELS.measure = False
    yield
    KERNELS.forget()
