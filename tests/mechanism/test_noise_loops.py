"""The loops over the noise: right to what the sampler's guarantee needs, and compiled the same."""

import sys
from decimal import Decimal, localcontext

import numpy as np
import pytest

from plumbline.compiled import run_of
from plumbline.mechanism import discrete_gaussian, noise_loops, noise_loops_compiled
from plumbline.mechanism.random_source import SeededSource

BOTH = pytest.mark.parametrize("loops", [noise_loops, noise_loops_compiled], ids=["numpy", "numba"])
UNIT = Decimal(2) ** -53
LAST = 2**34 - 1  # the outermost value of a cell


def words(n: int, *names: int) -> np.ndarray:
    return SeededSource(11).stream("words", *names).uint64(n)


def one(cell: int, place: int, accept: int, *, negative: bool = False) -> np.ndarray:
    """A candidate for the rest from its own column's cell."""
    return np.array([[0, cell << 54 | negative << 53 | place << 1, accept]], np.uint64)


def tried(loops: object, candidates: np.ndarray, room: int | None = None) -> list[float]:
    out = np.empty(len(candidates) if room is None else room)
    _, *tables = discrete_gaussian._mixture()
    return out[: loops.accepted(candidates, *tables, out)].tolist()  # type: ignore[attr-defined]


@BOTH
def test_every_entry_gives_its_cell_from_the_first_to_the_last_value(loops: object) -> None:
    begins = discrete_gaussian._mixture().begins
    for place in (0, 1, LAST):
        # Bits that stand for nothing are set, to show that they do.
        given = np.arange(2**15, dtype=np.uint64) << np.uint64(49)
        given |= np.uint64((2**14 - 1) << 35 | place << 1)
        rest = loops.first_part(given, begins)  # type: ignore[attr-defined]
        value = given.view(np.float64)
        assert np.array_equal(rest, np.flatnonzero(np.isnan(begins)))
        assert np.array_equal(value, begins + place + 0.5, equal_nan=True)


@BOTH
def test_the_rest_reaches_to_the_end_on_both_sides(loops: object) -> None:
    most = 2**64 - 1
    edge = discrete_gaussian.REACH * 2.0**40 - 0.5
    assert tried(loops, one(607, LAST, most)) == [edge]
    assert tried(loops, one(607, LAST, most, negative=True)) == [-edge]
    assert tried(loops, one(607, LAST, 0)) == []  # the least favourable draw for acceptance
    assert tried(loops, one(0, 0, most)) == [0.5]


@BOTH
@pytest.mark.parametrize("place", [0, 3, 2**20, 2**33, LAST])
@pytest.mark.parametrize("cell", [0, 1, 63, 64, 200, 208, 209, 300, 607])
def test_the_chance_of_acceptance_is_exact_to_six_roundings(
    loops: object, cell: int, place: int
) -> None:
    low, high = 0, 2**64  # the smallest draw that is accepted, by bisection
    while low < high:
        middle = (low + high) // 2
        if middle == 2**64 or tried(loops, one(cell, place, middle)):
            high = middle
        else:
            low = middle + 1
    depth = Decimal(float(discrete_gaussian._mixture().depth[cell]))
    with localcontext() as context:
        context.prec = 50
        edge, z = Decimal(cell) / 64, Decimal(cell) / 64 + (place + Decimal("0.5")) / 2**40
        refused = (1 - (-(z * z - edge * edge) / 2).exp()) / depth
        assert refused < 1
        error = abs(Decimal(low) / 2**64 - refused)
        assert error <= 6 * UNIT * refused + Decimal(2) ** -63


def test_the_fall_is_right_to_one_and_a_half_roundings() -> None:
    x = np.concatenate([words(3000) * 2.0**-64 * 0.15, 0.15 * 2.0 ** -np.arange(60.0)])
    found = noise_loops.fall(x)
    with localcontext() as context:
        context.prec = 50
        for given, got in zip(x.tolist(), found.tolist(), strict=True):
            exact = 1 - (-Decimal(given)).exp()
            assert abs(Decimal(got) - exact) <= Decimal("1.5") * UNIT * exact


def test_both_give_the_same_values_of_the_first_part() -> None:
    begins = discrete_gaussian._mixture().begins
    ours, theirs = words(100_000), words(100_000)
    rest = noise_loops.first_part(ours, begins)
    assert np.array_equal(rest, noise_loops_compiled.first_part(theirs, begins))
    values = [np.delete(given.view(np.float64), rest) for given in (ours, theirs)]
    assert np.array_equal(*values)


def test_both_give_the_same_values_of_the_rest() -> None:
    candidates = words(300_000).reshape(-1, 3)
    everything = tried(noise_loops, candidates)
    assert tried(noise_loops_compiled, candidates) == everything
    for loops in (noise_loops, noise_loops_compiled):
        assert tried(loops, candidates, room=100) == everything[:100]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("step", [0.3 * 2.0**-40, 1e-30, 1.0])
def test_both_add_alike(dtype: type, step: float) -> None:
    exponent = (words(40_000, 1) % np.uint64(60)).astype(np.float64) - 30
    value = ((words(40_000, 2) * 2.0**-63 - 1) * 2.0**exponent).astype(dtype)
    noise = np.floor(words(40_000, 3) * 2.0**-20) - 2.0**43 + 0.5
    ours, theirs = np.empty_like(value), np.empty_like(value)
    assert noise_loops.added(value, noise, step, ours)
    assert noise_loops_compiled.added(value, noise, step, theirs)
    assert ours.tobytes() == theirs.tobytes()
    expected = (np.rint(value.astype(np.float64) / step) + noise) * step
    assert np.array_equal(ours, expected.astype(dtype))


@BOTH
def test_adding_rounds_half_to_even_and_tells_what_is_not_finite(loops: object) -> None:
    value = np.array([0.5, 1.5, 2.5, -0.5, -1.5])
    out = np.empty(5)
    added = loops.added  # type: ignore[attr-defined]
    assert added(value, np.full(5, 0.5), 1.0, out)
    assert out.tolist() == [0.5, 2.5, 2.5, 0.5, -1.5]
    for bad in (np.nan, np.inf, -np.inf, 1e308):
        assert not added(np.array([1.0, bad, 1.0]), np.full(3, 0.5), 1e-3, np.empty(3))


def test_few_values_are_drawn_without_numba_and_many_with_it() -> None:
    assert discrete_gaussian.loops(1000) is noise_loops
    assert discrete_gaussian.loops(100_000) is noise_loops_compiled


def test_few_values_are_drawn_with_numba_in_a_long_run() -> None:
    with run_of(1999):
        assert discrete_gaussian.loops(1000) is noise_loops
    with run_of(2000):
        assert discrete_gaussian.loops(1000) is noise_loops_compiled
    assert discrete_gaussian.loops(1000) is noise_loops


def test_without_numba_the_values_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 150_000
    expected = discrete_gaussian.standard_normal(SeededSource(0).stream("n"), n)
    monkeypatch.setitem(sys.modules, "plumbline.mechanism.noise_loops_compiled", None)
    monkeypatch.delattr("plumbline.mechanism.noise_loops_compiled")
    discrete_gaussian._compiled_loops.cache_clear()
    try:
        assert discrete_gaussian.loops(n) is noise_loops
        found = discrete_gaussian.standard_normal(SeededSource(0).stream("n"), n)
    finally:
        discrete_gaussian._compiled_loops.cache_clear()
    assert np.array_equal(found, expected)
