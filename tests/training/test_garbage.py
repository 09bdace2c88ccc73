"""What a step computes is gone when the step is over, and does not wait for the collector.

Exact sums and noise that a cycle of references keeps would stay in memory for many steps.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor

import plumbline as pl
from plumbline.methods.base import Method
from tests.training.small import private

METHODS = {
    "one question": pl.methods.dpsgd(clip=1.0),
    "two passes": pl.methods.bam(clip=1.0, radius=0.1),
    "two questions": pl.methods.global_adapt(clip=1.0),
    "a question before": pl.methods.dp_sam(clip=1.0, radius=0.1),
}


@contextmanager
def unreachable() -> Iterator[list[object]]:
    """What only the collector can free, once the block is over."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.extend(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_cycle_is_found() -> None:
    with unreachable() as found:
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
    assert any(isinstance(one, list) for one in found)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_no_tensor_of_a_step_waits_for_the_collector(method: Method) -> None:
    mine = private(method=method)
    batches = iter(mine)
    mine.step(next(batches))  # the first one is checked, and its capture recorded
    with unreachable() as found:
        mine.step(next(batches))
    assert not [one for one in found if isinstance(one, Tensor)]
