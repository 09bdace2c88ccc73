"""Sums of records built to round: one record moves them by no more than what is charged.

In a running float32 sum of ``2^k`` the records below are lost or rounded up, all the same way, and
whether the sum is just below or just above ``2^k`` decides which. The first record does. Before,
this moved the sum of an embedding's gradients by 1.016 (1,025 records), 1.25 (4,097), 2 (8,193), 5
(16,385) and 257 (131,073) times the record's norm, and chunks of 64 by 25 times (327,680 records).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from plumbline.gradients import KERNELS, PerSampleGradients, jitter
from plumbline.gradients.compound import Mixed, Patched, Pulled
from plumbline.gradients.layers.blocks import Stacked
from plumbline.gradients.layers.convolution import Convolved, Geometry
from plumbline.gradients.layers.embedding import EmbeddingRows
from plumbline.gradients.outer import Outer
from plumbline.gradients.summation import ROUNDING, error, rounding_bound
from plumbline.gradients.terms import Dense, Term

SIZES = [1_025, 4_097, 8_193, 16_385, 131_073]
OWN = 1e-6  # a record's own rounding, which its norm carries


def rounding_records(count: int, every: int = 1) -> Tensor:
    """``[count]`` numbers of size at most one; the first decides how the last ones round."""
    power = math.floor(math.log2(count - 1)) - 1
    spacing, off = 2.0 ** (power - 24), 2.0**-10
    values = torch.zeros(count)
    values[: 2**power] = 1
    rest = torch.arange(count - 2**power)
    up = rest // every % 2 == 0
    late = torch.where(up, spacing * (1 + off), -spacing * (1 - off))
    values[2**power :] = torch.where(rest % every == 0, late, 0.0)
    return values


def row(values: Tensor, width: int) -> Tensor:
    """``[B, width]``, with the values in the first column."""
    return torch.nn.functional.pad(values[:, None], (0, width - 1))


def centred(rows: Tensor) -> Tensor:
    """A parametrisation's pull that is exact on the rows used here."""
    return rows.flip(-1)


GEOMETRY = Geometry((1,), (0,), (1,), 1, False, (0,))
ONE = torch.ones(1, 1, 1)

TERMS: dict[str, Callable[[Tensor], Term]] = {
    "dense": lambda v: Dense(row(v, 4096 if len(v) < 10_000 else 64)),
    "dense-narrow": lambda v: Dense(v[:, None]),
    "outer": lambda v: Outer(row(v, 4)[:, None], ONE.expand(len(v), 1, 8) / 8**0.5),
    "outer-positions": lambda v: Outer(
        torch.stack([row(v, 2), torch.zeros(len(v), 2)], 1), ONE.expand(len(v), 2, 1)
    ),
    "outer-many-positions": lambda v: Outer(
        torch.nn.functional.pad(v[:, None, None], (0, 0, 0, 15)), ONE.expand(len(v), 16, 1)
    ),
    "convolution": lambda v: Convolved(
        ONE.expand(len(v), 1, 1).contiguous(), v[:, None, None], torch.Size((1, 1, 1)), GEOMETRY
    ),
    "embedding": lambda v: EmbeddingRows(
        torch.zeros(len(v), 1, dtype=torch.long), row(v, 4)[:, None], 3
    ),
    "stacked": lambda v: Stacked(
        {(0, 1): Dense(row(v, 4)[:, None]), (1, 2): Dense(row(0 * v, 4)[:, None])},
        torch.Size((2, 4)),
    ),
    "mixed": lambda v: Mixed(
        [
            Outer(v[:, None, None], ONE.expand(len(v), 1, 1)),
            EmbeddingRows(torch.zeros(len(v), 1, dtype=torch.long), 0 * v[:, None, None], 1),
        ]
    ),
    "pulled": lambda v: Pulled(Dense(row(v, 2)), torch.Size((2,)), centred),
    "patched": lambda v: Patched(
        Dense(row(v, 2)), torch.tensor([len(v) - 1]), Dense(row(v[-1:], 2))
    ),
}


def total(values: Tensor, make: Callable[[Tensor], Term]) -> Tensor:
    """The sum in float64, flat."""
    return make(values).weighted_sum(torch.ones(len(values))).flatten()


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize(
    "count", [1_025, 4_097, 8_193, 16_385, pytest.param(131_073, marks=pytest.mark.slow)]
)
def test_one_record_moves_the_sum_by_its_norm(name: str, count: int) -> None:
    values = rounding_records(count)
    moved = total(values, TERMS[name]) - total(values[1:], TERMS[name])
    assert float(moved.norm()) <= (1 + ROUNDING) * (1 + OWN)


@pytest.mark.parametrize(
    "name", ["outer", "outer-positions", "outer-many-positions", "convolution"]
)
@pytest.mark.parametrize("count", [1_025, 16_385])
def test_so_do_compiled_loops(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.gradients.outer._WORTH", 0)
    monkeypatch.setattr("plumbline.gradients.outer._WORTH_ONE", 0)
    monkeypatch.setattr("plumbline.gradients.layers.convolution._WORTH", 0)
    monkeypatch.setattr("plumbline.gradients.summation.MANY", 0)
    with KERNELS.unmeasured("compiled"):
        test_one_record_moves_the_sum_by_its_norm(name, count)


@pytest.mark.parametrize("count", [131_073])
def test_the_largest_batch_of_the_fastest_attack(count: int) -> None:
    values = rounding_records(count)
    moved = total(values, TERMS["embedding"]) - total(values[1:], TERMS["embedding"])
    assert float(moved.norm()) <= (1 + ROUNDING) * (1 + OWN)


@pytest.mark.parametrize("count", SIZES)
def test_sums_are_near_the_exact_sum(count: int) -> None:
    values = rounding_records(count)
    exact = sum(map(Fraction, values.tolist()), Fraction(0))
    found = float(total(values, TERMS["dense-narrow"]))
    assert abs(Fraction(found) - exact) <= Fraction(rounding_bound(count, buckets=False) / 2)


@pytest.mark.parametrize("size", [2, 17, 108, 1_000])
def test_a_sum_rounds_within_the_proven_error(size: int) -> None:
    """Against exact sums, for records with ever larger partial sums."""
    generator = torch.Generator().manual_seed(size)
    for power in range(4):
        rows = torch.rand(size, 512, generator=generator) * 2.0**-power + 0.5
        rows = (rows / rows.norm(dim=1, keepdim=True)).float()
        exact = torch.tensor(
            [math.fsum(column) for column in rows.double().T.tolist()], dtype=torch.float64
        )
        for term in (Dense(rows), Outer(rows[:, None], torch.ones(size, 1, 1))):
            found = term.weighted_sum(torch.ones(size)).flatten()
            assert float((found - exact).norm()) <= error(size) * (1 + OWN)


def test_the_bound_is_what_is_charged() -> None:
    assert rounding_bound() <= ROUNDING <= 1e-3


def test_chunks_are_added_in_float64() -> None:
    count = 327_680
    values = torch.zeros(count)
    values[: 2**17] = 1
    rest = torch.arange(count - 2**17)
    spacing, off = 2.0 ** (17 - 24), 2.0**-10
    late = torch.where(rest // 64 % 2 == 0, spacing * (1 + off), -spacing * (1 - off))
    values[2**17 :] = torch.where(rest % 64 == 0, late, 0.0)
    sums = []
    for first in (1.0, 0.0):
        values[0] = first
        parts = [
            TERMS["dense-narrow"](chunk).weighted_sum(torch.ones(len(chunk)))
            for chunk in values.split(64)
        ]
        assert all(part.dtype == torch.float64 for part in parts)
        sums.append(sum(parts))
    assert float((sums[0] - sums[1]).norm()) <= 1 + ROUNDING


def test_jittered_sums_are_those_of_their_rows() -> None:
    gradients = PerSampleGradients.of({"w": torch.randn(300, 70)}, torch.zeros(300))
    noisy = jitter(gradients, 0.1, torch.arange(300))
    found = noisy.total()["w"]
    rows = noisy.materialise()["w"].double().sum(0)
    torch.testing.assert_close(found, rows, rtol=1e-12, atol=1e-12)


def test_sums_that_are_not_released_keep_their_type() -> None:
    gradients = PerSampleGradients.of({"w": torch.randn(300, 70)}, torch.zeros(300))
    assert gradients.sum()["w"].dtype == torch.float32
    assert gradients.to_release().sum()["w"].dtype == torch.float64
