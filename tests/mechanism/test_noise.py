import threading
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from plumbline.mechanism import discrete_gaussian
from plumbline.mechanism.discrete_gaussian import GRID_BITS, standard_normal
from plumbline.mechanism.noise import (
    NoisePrefetcher,
    add_noise,
    gaussian,
    rounding_sensitivity,
)
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from tests.mechanism.forked import in_child

CELLS = 152  # of the sampler's proposal: 16 to a standard deviation


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return standard_normal(SeededSource(2024).stream("noise", 0), 2_000_000)


# The distribution.


def test_it_is_a_standard_normal(sample: np.ndarray) -> None:
    assert stats.kstest(sample[:200_000], "norm").pvalue > 0.01
    n = len(sample)
    assert abs(sample.mean()) < 4 / n**0.5
    assert abs(sample.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs(stats.skew(sample)) < 4 * (6 / n) ** 0.5
    assert abs(stats.kurtosis(sample)) < 4 * (24 / n) ** 0.5


@pytest.mark.parametrize("beyond", [1.0, 2.0, 3.0, 4.0])
def test_its_tails_have_the_right_mass(sample: np.ndarray, beyond: float) -> None:
    for side in (sample, -sample):
        expected = len(sample) * stats.norm.sf(beyond)
        assert abs((side > beyond).sum() - expected) < 4 * expected**0.5


def test_neighbouring_values_are_independent(sample: np.ndarray) -> None:
    for lag in (1, 2, 3, 8192):
        assert abs(np.mean(sample[lag:] * sample[:-lag])) < 4 / len(sample) ** 0.5


def test_the_table_gives_every_cell_its_exact_probability() -> None:
    threshold, alias, left = discrete_gaussian._table()
    columns = len(threshold)
    chance = [Fraction(0)] * columns
    for column in range(columns):
        own = Fraction(int(threshold[column]), 2**64)
        if alias[column] == column:
            own = Fraction(1)
        chance[column] += own / columns
        chance[alias[column]] += (1 - own) / columns
    assert sum(chance) == 1
    assert left[CELLS] == discrete_gaussian.REACH > 8
    assert chance[CELLS:] == [0] * (columns - CELLS)
    with localcontext() as context:
        context.prec = 50
        weight = [(-(Decimal(j) ** 2) / 512).exp() for j in range(CELLS)]
        expected = [Fraction(w / sum(weight)) for w in weight]
    unit = Fraction(1, 2**72)
    error = [abs(c - e) for c, e in zip(chance, expected, strict=False)]
    assert all(e < 0.51 * unit for e in error[1:])
    assert error[0] < CELLS * unit  # the first cell takes up the others' rounding
    assert sum(error) / 2 < Fraction(1, 2**65)
    assert min(chance[:CELLS]) > 0


def test_it_reaches_beyond_nine_standard_deviations_on_both_sides() -> None:
    threshold, alias, left = discrete_gaussian._table()
    far = CELLS - 1
    place = np.array([far, far | 2**63], dtype=np.uint64) | np.uint64((2**36 - 1) << 8)
    words = np.stack([np.zeros(2, np.uint64), place, np.zeros(2, np.uint64)])
    values = discrete_gaussian._candidates(words, threshold, alias, left)
    edge = discrete_gaussian.REACH - 2.0**-41
    assert values.tolist() == [edge, -edge]
    words[2] = np.uint64(2**64 - 1)  # the least favourable draw for acceptance
    assert len(discrete_gaussian._candidates(words, threshold, alias, left)) == 0


def test_the_first_values_do_not_depend_on_how_many_are_drawn() -> None:
    source = SeededSource(1)
    long = gaussian(source.stream("noise", 0), 20_000)
    for n in (0, 1, 8_000, 8_192, 19_999):
        assert torch.equal(gaussian(source.stream("noise", 0), n), long[:n])


def test_seeded_noise_means_the_same_for_ever() -> None:
    # If this fails, every seeded run of an earlier version can no longer be repeated.
    values = gaussian(SeededSource(0).stream("noise", 0), 2).tolist()
    assert values == [-0.9884986300799028, -0.3888907778405155]


# The defence against floating-point attacks.


def test_every_value_is_on_the_public_grid(sample: np.ndarray) -> None:
    steps = sample * 2.0 ** (GRID_BITS + 1)
    assert (steps == np.rint(steps)).all()
    assert (steps.astype(np.int64) & 1 == 1).all()


def test_low_order_bits_carry_no_pattern(sample: np.ndarray) -> None:
    grid = np.floor(sample * 2.0**GRID_BITS).astype(np.int64)
    for shift in (0, 8, 16, 24):
        byte = (grid >> shift) & 255
        assert stats.chisquare(np.bincount(byte, minlength=256)).pvalue > 0.001
    # Nor together with the size of the value, which is where Box-Muller's holes are.
    size = np.digitize(np.abs(sample), [0.25, 0.5, 1, 1.5, 2, 3])
    table = np.array([np.bincount(grid[size == s] & 15, minlength=16) for s in range(7)])
    assert stats.chi2_contingency(table).pvalue > 0.001
    assert len(np.unique(grid)) > 0.999 * len(grid)  # 2^40 cells: hardly any value twice


@given(
    value=st.integers(-(2**50), 2**50),
    noise=st.integers(-(2**43), 2**43 - 1),
    moved=st.integers(-(2**43), 2**43 - 1),
    std=st.floats(1e-6, 1e6),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_the_answer_depends_on_value_and_noise_only_through_their_sum(
    value: int, noise: int, moved: int, std: float, dtype: torch.dtype
) -> None:
    # Two values on the grid and two noises with the same sum: not a bit of the answer may differ.
    step = std * 2.0**-GRID_BITS
    answers = []
    for z in (noise, moved):
        on_grid = torch.tensor([(value - z) * step], dtype=torch.float64)
        assert round(on_grid.item() / step) == value - z
        drawn = torch.tensor([(z + 0.5) * 2.0**-GRID_BITS], dtype=torch.float64)
        answer = add_noise({"v": on_grid}, std, drawn)["v"]
        answers.append(answer.to(dtype).item().hex())
    assert answers[0] == answers[1]


def test_precision_tells_zero_from_one_for_naive_noise_but_not_for_ours(
    sample: np.ndarray,
) -> None:
    # Haney et al. 2022: an answer more precise than floats near 1 are cannot come from the value 1.
    naive = np.random.default_rng(0).standard_normal(200_000)
    naive = (naive + np.random.default_rng(1).standard_normal(200_000)) / 2**0.5
    ours = torch.from_numpy(sample[:200_000].copy())

    def more_precise(answers: np.ndarray) -> int:
        scaled = answers * 2.0**53
        return int((scaled != np.rint(scaled)).sum())

    def answers(value: float) -> np.ndarray:
        tensor = torch.full([200_000], value, dtype=torch.float64)
        return add_noise({"v": tensor}, 1.0, ours)["v"].numpy()

    assert more_precise(naive + 0.0) > 10_000
    assert more_precise(naive + 1.0) < 0.6 * more_precise(naive + 0.0)
    assert more_precise(answers(0.0)) == more_precise(answers(1.0)) == 0
    for value in (0.0, 1.0, 0.1, 1e-30):
        steps = answers(value) * 2.0 ** (GRID_BITS + 1)
        assert (steps.astype(np.int64) & 1 == 1).all()


# Adding it.


def test_slices_go_to_the_tensors_in_order() -> None:
    value = {
        "b": torch.zeros(2, 3),
        "a": torch.ones(4, dtype=torch.float64),
        "s": torch.tensor(2.0),
    }
    noise = gaussian(SeededSource(0).stream("noise", 0), 11)
    noisy = add_noise(value, 0.5, noise)
    assert list(noisy) == ["b", "a", "s"]
    assert torch.equal(noisy["b"], (0.5 * noise[:6]).float().view(2, 3))
    torch.testing.assert_close(noisy["a"], 1 + 0.5 * noise[6:10], rtol=0, atol=1e-12)
    torch.testing.assert_close(noisy["s"], (2 + 0.5 * noise[10]).float(), rtol=1e-6, atol=0)
    assert torch.equal(value["b"], torch.zeros(2, 3))
    assert value["a"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_shape_and_type_are_kept(dtype: torch.dtype) -> None:
    value = torch.zeros(3, 0, 2, dtype=dtype), torch.ones(2, 5, dtype=dtype).T
    noisy = add_noise(dict(enumerate(value)), 1.0, gaussian(SeededSource(0).stream("n"), 10))
    assert [(v.shape, v.dtype) for v in noisy.values()] == [(v.shape, dtype) for v in value]


def test_without_noise_the_value_comes_back() -> None:
    value = torch.randn(5)
    noisy = add_noise({"v": value}, 0.0, gaussian(SeededSource(0).stream("n"), 5))["v"]
    assert torch.equal(noisy, value)
    assert noisy.data_ptr() != value.data_ptr()


def test_values_far_beyond_the_noise_are_kept() -> None:
    value = torch.tensor([1e30, -3e7, 60_000.0], dtype=torch.float64)
    noisy = add_noise({"v": value}, 1.0, gaussian(SeededSource(0).stream("n"), 3))["v"]
    torch.testing.assert_close(noisy, value, rtol=1e-12, atol=10)


def test_rounding_moves_neighbours_apart_by_no_more_than_is_said() -> None:
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(10_000, generator=generator, dtype=torch.float64)
    other = one + 1e-3 * torch.randn(10_000, generator=generator, dtype=torch.float64)
    std = 0.7
    still = torch.full([10_000], 2.0**-41, dtype=torch.float64)
    moved = [add_noise({"v": v}, std, still)["v"] for v in (one, other)]
    apart = (moved[0] - moved[1]).norm().item()
    assert apart <= (one - other).norm().item() + rounding_sensitivity(std, 10_000)
    assert rounding_sensitivity(1.0, 10**6) < 2e-9


@pytest.mark.parametrize(
    ("std", "noise", "complaint"),
    [
        pytest.param(-1.0, torch.zeros(3, dtype=torch.float64), "std is -1.0", id="negative-std"),
        pytest.param(float("nan"), torch.zeros(3, dtype=torch.float64), "std is nan", id="nan-std"),
        pytest.param(1e-300, torch.zeros(3, dtype=torch.float64), "too small", id="tiny-std"),
        pytest.param(1.0, torch.zeros(3), "float32", id="cast-noise"),
        pytest.param(1.0, torch.zeros(4, dtype=torch.float64), "3 entries", id="too-much-noise"),
    ],
)
def test_what_cannot_be_added_is_refused(std: float, noise: torch.Tensor, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        add_noise({"v": torch.zeros(3)}, std, noise)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match="'weight' holds a value that is not finite"):
        add_noise(
            {"weight": torch.tensor([0.0, bad])}, 1.0, gaussian(SeededSource(0).stream("n"), 2)
        )


# Preparing it.


def noise_threads() -> int:
    return sum(thread.name.startswith("plumbline-noise") for thread in threading.enumerate())


def test_prefetched_noise_is_the_noise_of_its_step() -> None:
    source = SeededSource(7)
    with NoisePrefetcher(source, 1000) as noise:
        for step in (0, 1, 2, 5, 6):  # with a jump, as after a resume
            assert torch.equal(noise.take(step), gaussian(source.stream("noise", step), 1000))
            assert noise_threads() <= 1
    assert noise_threads() == 0


def test_a_later_query_has_noise_of_its_own() -> None:
    source = SeededSource(7)
    with NoisePrefetcher(source, 10, query=1) as noise:
        assert torch.equal(noise.take(3), gaussian(source.stream("noise", 3, 1), 10))


def test_a_secure_source_never_repeats_noise() -> None:
    source = SecureSource()
    with NoisePrefetcher(source, 10) as one, NoisePrefetcher(source, 10) as two:
        assert not torch.equal(one.take(0), two.take(0))


def test_noise_is_handed_out_once_and_in_order() -> None:
    with NoisePrefetcher(SeededSource(7), 10) as noise:
        noise.take(4)
        for step in (4, 3):
            with pytest.raises(ValueError, match=f"step {step} was requested after"):
                noise.take(step)
        noise.take(5)


def test_nothing_is_drawn_beyond_the_last_step() -> None:
    noise = NoisePrefetcher(SeededSource(7), 10, stop=2)
    noise.take(1)
    assert noise_threads() == 0
    assert noise._ahead is None


class Failing(SeededSource):
    def once(self, domain: str, *position: int):  # type: ignore[no-untyped-def]
        if position[0] == 1:
            raise OSError("no entropy")
        return super().once(domain, *position)


def test_an_error_in_the_thread_surfaces_where_the_noise_is_asked_for() -> None:
    with NoisePrefetcher(Failing(0), 10) as noise:
        noise.take(0)
        with pytest.raises(OSError, match="no entropy"):
            noise.take(1)
        noise.take(2)
    assert noise_threads() == 0


@pytest.mark.parametrize("source", [SeededSource(3), SecureSource()], ids=["seeded", "secure"])
def test_it_goes_on_in_a_forked_child(source: RandomSource) -> None:
    with NoisePrefetcher(source, 50_000) as noise:
        noise.take(0)  # the noise of step 1 is being drawn while the process forks

        def go_on() -> list[float]:
            result = noise.take(1)[:5].tolist()
            noise.take(2)
            noise.close()
            assert noise_threads() == 0
            return result

        child = in_child(go_on)
        assert (noise.take(1)[:5].tolist() == child) == (not source.secure)
