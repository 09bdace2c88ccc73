"""Compiled sums and norms of outer products: against numpy, whatever the shapes and threads."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from plumbline.gradients.outer_loops import add_outer, add_rank_one, gram_squares
from plumbline.gradients.summation import RecordSums

Result = TypeVar("Result")
SHAPES = [(1, 2, 1, 1), (3, 2, 5, 3), (7, 5, 4, 9), (4, 17, 33, 31), (2, 3, 70, 1100)]


def run(note: Callable[..., Result], *args: Tensor) -> Result:
    """Notes one loop, and runs it."""
    together = RecordSums()
    found = note(*args, together)
    together.run()
    return found


def factors(shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Both factors of B records with T positions, and weights."""
    records, positions, rows, columns = shape
    generator = torch.Generator().manual_seed(sum(shape))
    left = torch.randn(records, positions, rows, generator=generator)
    right = torch.randn(records, positions, columns, generator=generator)
    return left, right, torch.rand(records, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_norms(shape: tuple[int, int, int, int]) -> None:
    left, right, weights = factors(shape)
    exact = np.einsum("btm,btn->bmn", *(one.numpy().astype(np.longdouble) for one in (left, right)))
    total = torch.full(shape[2:], 3.0, dtype=torch.float64)
    run(add_outer, left, right, weights, total)
    sizes = np.einsum("btm,btn,b->mn", abs(left.numpy()), abs(right.numpy()), weights.numpy()) + 3
    error = np.abs(total.numpy() - (np.einsum("bmn,b->mn", exact, weights.numpy()) + 3))
    assert (error <= sizes * (shape[1] * 2.0**-24 + shape[0] * 2.0**-53)).all()
    squares = run(gram_squares, left, right).numpy()
    rounded = shape[1] * (shape[2] + shape[3]) * 2.0**-53  # at most, of what is added up
    for found, true, terms in (
        (squares[0], (exact**2).sum((1, 2)), squares[1] * squares[2]),
        (squares[1], (left.numpy().astype(np.longdouble) ** 2).sum((1, 2)), squares[1]),
        (squares[2], (right.numpy().astype(np.longdouble) ** 2).sum((1, 2)), squares[2]),
    ):
        assert (np.abs(found - true) <= shape[1] * rounded * terms).all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (9, 4, 12), (21, 33, 40), (530, 6, 25)])
def test_sums_of_rank_one(shape: tuple[int, int, int]) -> None:
    left, right, weights = factors((shape[0], 1, *shape[1:]))
    total = torch.full(shape[1:], 3.0, dtype=torch.float64)
    run(add_rank_one, left[:, 0], right[:, 0], weights, total)
    scaled = weights.numpy().astype(np.longdouble)[:, None] * left[:, 0].numpy()
    error = np.abs(total.numpy() - (scaled.T @ right[:, 0].numpy().astype(np.longdouble) + 3))
    sizes = np.abs(scaled.T).astype(float) @ np.abs(right[:, 0].numpy()) + 3
    assert (error <= sizes * (shape[0] + 2) * 2.0**-53).all()


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right, weights = factors((4, 6, 37, 21))
    sums, ones, squares = [], [], []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        sums.append(torch.zeros(37, 21, dtype=torch.float64))
        run(add_outer, left, right, weights, sums[-1])
        ones.append(torch.zeros(37, 21, dtype=torch.float64))
        run(add_rank_one, left[:, 0], right[:, 0], weights, ones[-1])
        squares.append(run(gram_squares, left, right))
    for found in (sums, ones, squares):
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


def test_a_record_that_is_not_finite_stays_alone() -> None:
    left, right, _ = factors((4, 3, 9, 8))
    before = run(gram_squares, left, right)
    left[1], right[2] = float("nan"), float("inf")
    after = run(gram_squares, left, right)
    assert torch.equal(before[:, [0, 3]], after[:, [0, 3]])
    assert not bool(torch.isfinite(after[0, 1:3]).any())
