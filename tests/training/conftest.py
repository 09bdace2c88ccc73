"""Deterministic runs pin the process's kernels; the next test starts without that."""

from collections.abc import Iterator

import pytest

from plumbline.gradients.kernels import KERNELS


@pytest.fixture(autouse=True)
def _unpinned() -> Iterator[None]:
    yield
    KERNELS.forget()
