"""Each record is read with random numbers of its own; the user's generators stay as they were."""

import multiprocessing
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from plumbline.record_random import one_by_one

Numbers = tuple[float, float, float]


def draw(number: int) -> Numbers:
    """As many numbers as the record decides, from each of the global generators."""
    for _ in range(number % 3):
        torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    return torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002


def test_a_record_draws_the_same_in_any_company_and_order() -> None:
    alone = {number: one_by_one(draw, [number], "key")[0] for number in range(6)}
    assert one_by_one(draw, range(6), "key") == [alone[number] for number in range(6)]
    assert one_by_one(draw, [4, 1, 5], "key") == [alone[number] for number in (4, 1, 5)]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["torch", "numpy", "python"])
def test_other_records_and_other_keys_draw_otherwise(which: int) -> None:
    def drawn(number: int, key: str) -> float:
        return one_by_one(draw, [number], key)[0][which]

    assert len({drawn(number, key) for number in (0, 3, 6) for key in ("one step", "next")}) == 6


@pytest.mark.parametrize("fails", [False, True])
def test_the_users_generators_are_left_as_they_were(fails: bool) -> None:
    def reading(number: int) -> Numbers:
        if fails and number:
            raise KeyError(number)
        return draw(number)

    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    expected = draw(2)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    if fails:
        with pytest.raises(KeyError):
            one_by_one(reading, [0, 1], "key")
    else:
        one_by_one(reading, [0, 1], "key")
    assert draw(2) == expected


def test_a_worker_process_draws_the_same() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(one_by_one, (draw, [3, 1], "key"))
    assert there == one_by_one(draw, [3, 1], "key")


def constant(number: int) -> int:
    return number


def test_what_draws_nothing_is_as_it_was() -> None:
    reading: Callable[[int], int] = constant
    assert one_by_one(reading, [2, 0], "key") == [2, 0]
    assert one_by_one(reading, [], "key") == []
