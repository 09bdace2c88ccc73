import hashlib
import threading
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from plumbline.mechanism import discrete_gaussian, noise_loops
from plumbline.mechanism.discrete_gaussian import GRID_BITS, standard_normal
from plumbline.mechanism.noise import (
    NoisePrefetcher,
    _added_at_once,
    add_noise,
    drawn,
    gaussian,
    rounding_sensitivity,
)
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from tests.mechanism.forked import in_child

CELLS = 608  # of the sampler on each side of zero: 64 to a standard deviation


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
    for lag in (1, 2, 3, 8192, 65_536):
        assert abs(np.mean(sample[lag:] * sample[:-lag])) < 4 / len(sample) ** 0.5


def test_the_tables_give_every_value_its_exact_probability() -> None:
    # A value z of a cell whose inner edge is l has n 2^-49 from the first part, and from the rest
    # something proportional to q / d (d - 1 + exp(-x)), with exp(-x) = p(z) / p(l). Their sum is
    # p(z) if n 2^-49 = p(l) (1 - d), and if q / d is proportional to p(l).
    begins, threshold, alias, depth = discrete_gaussian._mixture()
    named, count = np.unique(begins[~np.isnan(begins)] / 2.0**34, return_counts=True)
    entries = dict(zip(named.astype(int).tolist(), count.tolist(), strict=True))
    assert all(entries[-1 - cell] == entries[cell] for cell in entries if cell >= 0)
    columns = len(threshold)
    proposed = [Fraction(0)] * columns
    for column in range(columns):
        own = Fraction(int(threshold[column]), 2**64)
        if alias[column] == column:
            own = Fraction(1)
        proposed[column] += own / columns
        proposed[alias[column]] += (1 - own) / columns
    assert sum(proposed) == 1
    assert CELLS / 64 == discrete_gaussian.REACH > 8
    assert proposed[CELLS:] == [0] * (columns - CELLS)
    assert min(proposed[:CELLS]) > 0
    with localcontext() as context:
        context.prec = 50
        shape = [(-((Decimal(j) / 64) ** 2) / 2).exp() for j in range(CELLS + 1)]
        root_two_pi = (2 * Decimal("3.14159265358979323846264338327950288419716939937511")).sqrt()
        edge = [Fraction(f / root_two_pi) / 64 for f in shape]  # p(l) 2^34
    rest = 1 - 2 * Fraction(sum(entries.get(j, 0) for j in range(CELLS)), 2**15)
    assert 0.013 < rest < 0.014
    first = [Fraction(entries.get(j, 0), 2**15) for j in range(CELLS)]
    assert all(own <= outer for own, outer in zip(first, edge[1:], strict=True))
    exact = [1 - own / inner for own, inner in zip(first, edge, strict=False)]
    for cell in range(CELLS):  # to one rounding of a float64
        assert abs(Fraction(float(depth[cell])) - exact[cell]) <= exact[cell] * Fraction(1, 2**53)
    weight = [inner * d for inner, d in zip(edge, exact, strict=False)]
    unit = Fraction(1, 2**74)
    total = sum(weight)
    error = [abs(q - w / total) for q, w in zip(proposed, weight, strict=False)]
    assert all(e < 0.51 * unit for e in error[1:])
    assert error[0] < CELLS * unit  # the first cell takes up the others' rounding
    # Of all values `rest` are of the rest, and of them each is the one in 1 / 0.68 candidates.
    assert rest / Fraction(68, 100) * sum(error) / 2 < Fraction(1, 2**70)


def test_the_rest_is_accepted_as_often_as_the_guarantee_assumes() -> None:
    *_, threshold, alias, depth = discrete_gaussian._mixture()
    words = SeededSource(5).stream("n").uint64(3 * 100_000).reshape(-1, 3)
    kept = noise_loops.accepted(words, threshold, alias, depth, np.empty(100_000))
    assert abs(kept / 100_000 - 0.685) < 0.006


def test_the_first_values_do_not_depend_on_how_many_are_drawn() -> None:
    source = SeededSource(1)
    long = gaussian(source.stream("noise", 0), 140_000)
    for n in (0, 1, 8_000, 65_535, 65_536, 65_537, 139_999):
        assert torch.equal(gaussian(source.stream("noise", 0), n), long[:n])


def test_seeded_noise_means_the_same_for_ever() -> None:
    # If this fails, every seeded run of an earlier version can no longer be repeated.
    values = gaussian(SeededSource(0).stream("noise", 0), 70_000)  # more than a block
    assert values[:2].tolist() == [-0.6241462543816851, -0.5427866223812998]
    half_steps = (values.numpy() * 2.0 ** (GRID_BITS + 1)).astype("<i8")
    assert hashlib.sha256(half_steps.tobytes()).hexdigest().startswith("5fa82000b97c1530")


@pytest.mark.parametrize("threads", [2, 3])
def test_values_do_not_depend_on_the_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 5 * 65_536 + 1000
    stream = SeededSource(1).stream
    assert np.array_equal(
        standard_normal(stream("noise"), n, threads), standard_normal(stream("noise"), n)
    )
    value = {"v": torch.linspace(-1, 1, n)}
    answers = []
    for number in (1, threads):
        monkeypatch.setattr(torch, "get_num_threads", lambda number=number: number)
        answers.append(add_noise(value, 0.3, stream("noise"))["v"])
    assert torch.equal(*answers)
    assert noise_threads() == 0


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
        fixed = torch.tensor([(z + 0.5) * 2.0**-GRID_BITS], dtype=torch.float64)
        answer = add_noise({"v": on_grid}, std, fixed)["v"]
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


@pytest.mark.parametrize("n", [100, 200_000])  # by numpy's loops, and by compiled ones
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_answer_of_another_type_is_the_answer_cast(n: int, dtype: torch.dtype) -> None:
    value = {"a": torch.linspace(-3, 3, n, dtype=torch.float64), "b": torch.ones(2, 3).double()}
    whole = add_noise(value, 0.5, SeededSource(1).stream("noise"))
    answer = add_noise(value, 0.5, SeededSource(1).stream("noise"), dtype)
    drawn_before = add_noise(value, 0.5, gaussian(SeededSource(1).stream("noise"), n + 6), dtype)
    for name, own in whole.items():
        assert answer[name].dtype == dtype
        assert torch.equal(answer[name], own.to(dtype))
        assert torch.equal(drawn_before[name], own.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_shape_and_type_are_kept(dtype: torch.dtype) -> None:
    value = torch.zeros(3, 0, 2, dtype=dtype), torch.ones(2, 5, dtype=dtype).T
    noisy = add_noise(dict(enumerate(value)), 1.0, gaussian(SeededSource(0).stream("n"), 10))
    assert [(v.shape, v.dtype) for v in noisy.values()] == [(v.shape, dtype) for v in value]


@pytest.mark.parametrize("n", [10, 70_000])
def test_values_that_are_not_in_one_piece_are_read_as_they_are(n: int) -> None:
    every_second = torch.arange(2.0 * n)[::2]
    one_for_all = torch.ones(1).expand(n)
    value = {"a": every_second.requires_grad_(), "b": one_for_all}
    plain = {"a": every_second.detach().clone(), "b": torch.ones(n)}
    noisy, expected = (add_noise(v, 1.0, SeededSource(0).stream("n")) for v in (value, plain))
    assert all(torch.equal(noisy[name], expected[name]) for name in value)


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


@pytest.mark.parametrize("sizes", [[3], [70_000, 1, 0, 130_000, 5], [0], [7] * 300])
def test_noise_is_added_alike_drawn_before_or_meanwhile_here_or_elsewhere(sizes: list[int]) -> None:
    draw = torch.Generator().manual_seed(0)
    value: dict[str, torch.Tensor] = {}
    for number, size in enumerate(sizes):
        dtype = (torch.float32, torch.float64, torch.bfloat16)[number % 3]
        value[str(number)] = torch.randn(size, generator=draw, dtype=torch.float64).to(dtype)
    noise = gaussian(SeededSource(0).stream("n"), sum(sizes))
    expected = torch.cat([v.double().reshape(-1) for v in value.values()])
    expected = ((expected / (0.7 * 2.0**-40)).round() + noise * 2.0**40) * (0.7 * 2.0**-40)
    at_once = add_noise(value, 0.7, SeededSource(0).stream("n"))
    before = add_noise(value, 0.7, noise)
    elsewhere = _added_at_once(value, 0.7 * 2.0**-40, noise)
    parts = expected.split(sizes)
    for name, part in zip(value, parts, strict=True):
        assert at_once[name].dtype == value[name].dtype
        assert torch.equal(at_once[name], before[name])
        assert torch.equal(at_once[name], elsewhere[name])
        assert torch.equal(at_once[name], part.to(value[name].dtype))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_value_that_is_not_finite_is_found_in_every_block(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for place in (0, 100_000, 199_999):
        value = torch.zeros(200_000)
        value[place] = float("nan")
        with pytest.raises(ValueError, match="'late' holds a value that is not finite"):
            add_noise({"good": torch.zeros(3), "late": value}, 1.0, SeededSource(0).stream("noise"))
    assert noise_threads() == 0


def test_a_value_too_large_for_the_grid_is_refused() -> None:
    huge = torch.full([2], 1e300, dtype=torch.float64)
    with pytest.raises(ValueError, match="the value in steps of the grid"):
        add_noise({"v": huge}, 1e-5, SeededSource(0).stream("noise"))


# Preparing it.


def noise_threads() -> int:
    return sum(thread.name.startswith("plumbline-noise") for thread in threading.enumerate())


def test_prefetched_noise_is_the_noise_of_its_step() -> None:
    source = SeededSource(7)
    with NoisePrefetcher(source, 1000) as noise:
        for step in (0, 1, 2, 5, 6):  # with a jump, as after a resume
            ours = drawn(noise.take(step), 1000)
            assert torch.equal(ours, gaussian(source.stream("noise", step), 1000))
            assert noise_threads() <= 1
    assert noise_threads() == 0


def test_a_later_query_has_noise_of_its_own() -> None:
    source = SeededSource(7)
    with NoisePrefetcher(source, 10, query=1) as noise:
        for step in (3, 4):
            ours = drawn(noise.take(step), 10)
            assert torch.equal(ours, gaussian(source.stream("noise", step, 1), 10))


def test_a_secure_source_never_repeats_noise() -> None:
    source = SecureSource()
    with NoisePrefetcher(source, 10) as one, NoisePrefetcher(source, 10) as two:
        for step in range(3):
            assert not torch.equal(drawn(one.take(step), 10), drawn(two.take(step), 10))


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
            result = drawn(noise.take(1), 50_000)[:5].tolist()
            noise.take(2)
            noise.close()
            assert noise_threads() == 0
            return result

        child = in_child(go_on)
        here = drawn(noise.take(1), 50_000)[:5].tolist()
        assert (here == child) == (not source.secure)
