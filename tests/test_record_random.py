import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from plumbline.record_random import Draws, _mixed, own_generators

ROWS, LENGTH = 400, 500
KEYS = ["", "seed 0, step 1, views", "ключ"]


@pytest.fixture(params=KEYS)
def sample(request: pytest.FixtureRequest, device: torch.device) -> Tensor:
    """The first LENGTH uniforms of records 0 to ROWS - 1: [ROWS, LENGTH] float64."""
    return Draws(torch.arange(ROWS, device=device), request.param).uniform(LENGTH).double()


def rows(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_the_mixing_is_splitmix64(device: torch.device) -> None:
    # The generator's published first outputs for seed 1234567 (Vigna's splitmix64.c, which
    # Rosetta Code's task of that name checks against).
    golden = 0x9E3779B97F4A7C15
    states = [(1234567 + i * golden) % 2**64 for i in range(5)]
    signed = torch.tensor([s - 2**64 if s >= 2**63 else s for s in states], device=device)
    assert [value % 2**64 for value in _mixed(signed).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


class TestUniformity:
    # All samples are fixed by their keys, so the bounds (five standard deviations of what truly
    # uniform and independent numbers would show) hold always or never.

    def test_range_and_dtype(self, device: torch.device) -> None:
        drawn = Draws(torch.arange(2000, device=device), "range").uniform(100)
        assert drawn.dtype == torch.float32
        assert drawn.device.type == device.type
        assert drawn.min() >= 0
        assert drawn.max() < 1
        # Of 200000, the extremes are farther than 1e-4 from the ends once in 10^8.
        assert drawn.min() < 1e-4
        assert drawn.max() > 1 - 1e-4

    def test_mean_and_variance(self, sample: Tensor) -> None:
        count = sample.numel()
        assert abs(sample.mean() - 1 / 2) < 5 * (1 / 12 / count) ** 0.5
        # The square of a centred uniform has variance 1/80 - 1/144 = 1/180.
        assert abs(((sample - 1 / 2) ** 2).mean() - 1 / 12) < 5 * (1 / 180 / count) ** 0.5

    def test_every_row_and_every_place_has_the_mean(self, sample: Tensor) -> None:
        for axis in (0, 1):
            deviation = (sample.mean(axis) - 1 / 2) / (1 / 12 / sample.shape[axis]) ** 0.5
            assert deviation.abs().max() < 5
            assert abs((deviation**2).mean() - 1) < 5 * (2 / len(deviation)) ** 0.5

    def test_bins_fill_evenly(self, sample: Tensor) -> None:
        bins = 100
        found = (sample * bins).long().flatten().bincount(minlength=bins)
        mean = sample.numel() / bins
        chi_square = ((found - mean) ** 2 / mean).sum()
        assert abs(chi_square - (bins - 1)) < 5 * (2 * (bins - 1)) ** 0.5

    @pytest.mark.parametrize("lag", [1, 2, 7])
    def test_neighbours_in_a_stream_and_neighbouring_streams_are_uncorrelated(
        self, sample: Tensor, lag: int
    ) -> None:
        centred = (sample - 1 / 2) * 12**0.5
        for product in (
            centred[:, lag:] * centred[:, :-lag],
            centred[lag:] * centred[:-lag],
            centred[lag:, lag:] * centred[:-lag, :-lag],  # a stream that is its neighbour's, later
            centred[lag:, :-lag] * centred[:-lag, lag:],
        ):
            assert abs(product.mean()) < 5 / product.numel() ** 0.5

    def test_any_two_streams_are_uncorrelated(self, sample: Tensor) -> None:
        centred = (sample - 1 / 2) * 12**0.5
        correlations = (centred @ centred.T / LENGTH).triu(1)
        pairs = ROWS * (ROWS - 1) / 2
        # Of 80000 normal deviates the largest is about 4.3.
        assert correlations.abs().max() * LENGTH**0.5 < 5.5
        assert abs((correlations**2).sum() * LENGTH / pairs - 1) < 5 * (2 / pairs) ** 0.5

    @pytest.mark.parametrize(
        "other", ["seed 0, step 2, views", "seed 1, step 1, views", "Seed 0, step 1, views"]
    )
    def test_keys_are_uncorrelated(self, other: str, device: torch.device) -> None:
        numbers = torch.arange(ROWS, device=device)
        ours, theirs = (
            Draws(numbers, key).uniform(LENGTH).double() for key in ("seed 0, step 1, views", other)
        )
        product = (ours - 1 / 2) * (theirs - 1 / 2) * 12
        assert not (ours == theirs).all(1).any()
        assert abs(product.mean()) < 5 / product.numel() ** 0.5

    def test_numbers_far_apart_are_as_good_as_neighbours(self, device: torch.device) -> None:
        numbers = torch.tensor([2**k for k in range(63)] + [-1, -(2**63), 0], device=device)
        drawn = Draws(numbers, "far").uniform(LENGTH).double()
        assert len(drawn.unique(dim=0)) == len(numbers)
        deviation = (drawn.mean(1) - 1 / 2) / (1 / 12 / LENGTH) ** 0.5
        assert deviation.abs().max() < 5


class TestARecordsOwn:
    def test_the_place_in_the_batch_does_not_matter(self, device: torch.device) -> None:
        numbers = torch.arange(1000, 1100, device=device)
        whole = Draws(numbers, "key")
        expected = whole.uniform(3), whole.integers(10, 2), whole.seeds()
        for part in ([2, 5], [5, 2], [99], [7, 7], list(range(50, 100)), []):
            draws = Draws(numbers[part], "key")
            assert len(draws) == len(part)
            assert torch.equal(draws.uniform(3), expected[0][part])
            assert torch.equal(draws.integers(10, 2), expected[1][part])
            assert torch.equal(draws.seeds(), expected[2][part])

    def test_a_stream_goes_on(self) -> None:
        whole = Draws(rows(4, 9), "key").uniform(6)
        draws = Draws(rows(4, 9), "key")
        parts = [draws.uniform(2), draws.uniform()[:, None], draws.uniform(1, 3).flatten(1)]
        assert torch.equal(torch.cat(parts, 1), whole)
        assert all(len(row.unique()) == 6 for row in whole)

    def test_shapes(self) -> None:
        draws = Draws(rows(1, 2, 3), "key")
        assert draws.uniform().shape == (3,)
        assert draws.uniform(1).shape == (3, 1)
        assert draws.uniform(2, 5).shape == (3, 2, 5)
        assert draws.integers(7, 4).shape == (3, 4)
        assert draws.seeds().shape == (3,)

    def test_no_rows(self) -> None:
        draws = Draws(rows(), "key")
        assert len(draws) == len(draws.repeat(4)) == 0
        assert draws.uniform().shape == (0,)
        assert draws.uniform(2, 5).shape == (0, 2, 5)
        assert draws.integers(7, 4).shape == (0, 4)
        assert draws.seeds().shape == (0,)

    def test_keys_and_numbers_choose_the_stream(self) -> None:
        first = Draws(rows(0, 1, 0), "key").uniform(8)
        assert torch.equal(first, Draws(rows(0, 1, 0), "key").uniform(8))
        assert torch.equal(first[0], first[2])
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first[0], Draws(rows(0), "another key").uniform(8)[0])

    def test_the_numbers_dtype_does_not_matter(self) -> None:
        expected = Draws(rows(3, 200), "key").uniform(4)
        for dtype in (torch.int32, torch.uint8):
            assert torch.equal(Draws(rows(3, 200).to(dtype), "key").uniform(4), expected)

    def test_the_device_does_not_matter(self, device: torch.device) -> None:
        numbers = torch.arange(50)
        for make in (Draws(numbers, "key"), Draws(numbers, "key").repeat(3)):
            expected = make.uniform(4)
            there = Draws(numbers.to(device), "key")
            there = there.repeat(3) if len(make) == 150 else there
            assert torch.equal(there.uniform(4).cpu(), expected)

    def test_torchs_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        draws = Draws(rows(1, 2), "key")
        first = draws.uniform(3)
        torch.manual_seed(77)
        assert torch.equal(Draws(rows(1, 2), "key").uniform(3), first)
        torch.set_rng_state(before)
        draws.repeat(2).integers(5)
        assert torch.equal(torch.get_rng_state(), before)


class TestRepeat:
    def test_all_streams_differ(self, device: torch.device) -> None:
        draws = Draws(torch.arange(100, device=device), "key")
        views = draws.repeat(16)
        assert len(views) == 1600
        both = torch.cat([views.uniform(4), draws.uniform(4)])
        assert len(both.unique(dim=0)) == 1700

    def test_a_rows_own_are_side_by_side_and_its_alone(self, device: torch.device) -> None:
        numbers = torch.arange(20, device=device)
        whole = Draws(numbers, "key").repeat(5).uniform(3).unflatten(0, (20, 5))
        for part in ([3], [11, 0], [6, 6]):
            alone = Draws(numbers[part], "key").repeat(5).uniform(3).unflatten(0, (-1, 5))
            assert torch.equal(alone, whole[part])

    def test_more_of_them_leave_the_first_as_they_were(self, device: torch.device) -> None:
        numbers = torch.arange(20, device=device)
        few, many = (
            Draws(numbers, "key").repeat(times).uniform(3).unflatten(0, (20, times))
            for times in (2, 9)
        )
        assert torch.equal(many[:, :2], few)

    def test_views_of_a_row_are_uniform_and_uncorrelated(self, device: torch.device) -> None:
        drawn = Draws(torch.arange(ROWS, device=device), "key").repeat(8).uniform(100).double()
        centred = ((drawn - 1 / 2) * 12**0.5).unflatten(0, (ROWS, 8))
        assert abs(centred.mean()) < 5 / centred.numel() ** 0.5
        same_row = torch.einsum("rid,rjd->ij", centred, centred) / (ROWS * 100)
        assert same_row.fill_diagonal_(0).abs().max() < 5 / (ROWS * 100) ** 0.5

    def test_the_original_goes_on_undisturbed(self) -> None:
        draws, untouched = Draws(rows(1, 2), "key"), Draws(rows(1, 2), "key")
        assert torch.equal(draws.uniform(2), untouched.uniform(2))
        draws.repeat(3).uniform(7)
        assert torch.equal(draws.uniform(2), untouched.uniform(2))


class TestIntegers:
    @pytest.mark.parametrize("high", [1, 2, 3, 9, 100])
    def test_all_are_reached_equally_and_no_other(self, high: int, device: torch.device) -> None:
        drawn = Draws(torch.arange(1000, device=device), "integers").integers(high, 50)
        assert drawn.dtype == torch.int64
        assert drawn.min() == 0
        assert drawn.max() == high - 1
        found, mean = drawn.flatten().bincount(minlength=high), drawn.numel() / high
        deviation = (found - mean) / max(mean * (1 - 1 / high), 1) ** 0.5
        assert deviation.abs().max() < 4.5

    def test_a_large_range_does_not_overflow(self, device: torch.device) -> None:
        high = 2**31 - 1
        drawn = Draws(torch.arange(1000, device=device), "integers").integers(high, 50)
        assert drawn.min() >= 0
        assert drawn.max() < high
        assert drawn.max() > high * 0.999
        assert abs(drawn.double().mean() / high - 1 / 2) < 5 * (1 / 12 / drawn.numel()) ** 0.5

    def test_pairs_are_independent(self, device: torch.device) -> None:
        drawn = Draws(torch.arange(40_000, device=device), "pairs").integers(9, 2)
        found = (drawn[:, 0] * 9 + drawn[:, 1]).bincount(minlength=81)
        mean = 40_000 / 81
        assert abs(((found - mean) ** 2 / mean).sum() - 80) < 5 * 160**0.5


class TestSeeds:
    def test_not_negative_and_different(self, device: torch.device) -> None:
        draws = Draws(torch.arange(10_000, device=device), "seeds")
        first, second = draws.seeds(), draws.seeds()
        assert first.dtype == torch.int64
        both = torch.cat([first, second])
        assert both.min() >= 0
        assert len(both.unique()) == 20_000

    def test_streams_do_not_run_into_each_other(self, device: torch.device) -> None:
        draws = Draws(torch.arange(500, device=device), "seeds")
        repeated = draws.repeat(3)
        drawn = [part.seeds() for part in (draws, repeated) for _ in range(100)]
        # Of 200000 numbers of 63 bits, two are equal once in 10^8 samples.
        assert len(torch.cat(drawn).unique()) == 200_000

    def test_every_bit_is_used(self, device: torch.device) -> None:
        seeds = Draws(torch.arange(10_000, device=device), "seeds").seeds()
        bits = seeds[:, None] >> torch.arange(63, device=device) & 1
        # Five standard deviations of a fair coin's mean over 10000.
        assert (bits.double().mean(0) - 1 / 2).abs().max() < 5 * 0.5 / 100

    def test_a_generator_takes_them(self) -> None:
        for seed in Draws(rows(0, 1, 2), "seeds").seeds().tolist():
            assert torch.Generator().manual_seed(seed).initial_seed() == seed


def test_some_rows_go_on_where_all_are() -> None:
    draws, some = Draws(torch.arange(5), "key"), Draws(torch.arange(5), "key")
    draws.uniform(2), some.uniform(2)
    part = some.rows(slice(1, 3))
    assert len(part) == 2
    assert torch.equal(part.uniform(3), draws.uniform(3)[1:3])


FRESH: dict[str, Callable[[], float]] = {
    "NumPy's": lambda: float(np.random.default_rng().random()),
    "NumPy's older": lambda: np.random.RandomState().rand(),
    "a bit generator": lambda: float(np.random.PCG64().random_raw()),
    "Python's": lambda: random.Random().random(),
    "Python's, seeded again": lambda: _again().random(),
}


def _again() -> random.Random:
    generator = random.Random(3)
    generator.seed()
    return generator


@pytest.mark.parametrize("draw", FRESH.values(), ids=FRESH.keys())
def test_fresh_generators_are_the_records_own(draw: Callable[[], float]) -> None:
    def drawn(number: int) -> list[float]:
        with own_generators("key", number):
            return [draw(), draw()]

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 4
    assert draw() != draw(), "afterwards they take the system's entropy again"


def test_seeded_generators_are_as_ever() -> None:
    seeds = (lambda: np.random.default_rng(3).random(), lambda: random.Random(3).random())
    for draw in seeds:
        before = draw()
        with own_generators("key"):
            assert draw() == before
