"""The table of kernel choices: measured once, remembered, pinned, forgotten."""

from collections.abc import Callable
from itertools import count

import pytest

from plumbline.gradients import kernels
from plumbline.gradients.kernels import Kernels, bucket


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the measurement reads, moved by the candidates themselves."""
    now = [0.0]
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: now[0])
    return now


def taking(clock: list[float], seconds: float, name: str) -> Callable[[], str]:
    def candidate() -> str:
        clock[0] += seconds
        return name

    return candidate


def test_the_fastest_is_measured_once_and_remembered(clock: list[float]) -> None:
    table, calls = Kernels(), count()

    def slow() -> str:
        next(calls)
        clock[0] += 2
        return "slow"

    candidates = {"slow": slow, "fast": taking(clock, 1, "fast")}
    assert table.run(("layer", 3), candidates) == "fast"
    measured = next(calls)
    assert measured > 0
    assert table.run(("layer", 3), candidates) == "fast"
    assert next(calls) == measured + 1, "a remembered choice must not be measured again"
    assert table.chosen(("layer", 3)) == "fast"
    assert table.timings[("layer", 3)] == {"slow": 2, "fast": 1}


def test_the_usual_kernel_wins_unless_another_is_clearly_faster(clock: list[float]) -> None:
    candidates = {"usual": taking(clock, 1.0, "usual"), "other": taking(clock, 0.98, "other")}
    assert Kernels().run(("layer",), candidates) == "usual"


def test_what_is_done_with_the_result_counts(clock: list[float]) -> None:
    later = {"quick": 5.0, "thorough": 0.0}

    def finish(result: str) -> None:
        clock[0] += later[result]

    candidates = {"quick": taking(clock, 1, "quick"), "thorough": taking(clock, 3, "thorough")}
    assert Kernels().run(("layer",), candidates, finish) == "thorough"


def test_without_measuring_the_first_candidate_is_taken(clock: list[float]) -> None:
    candidates = {"first": taking(clock, 9, "first"), "second": taking(clock, 1, "second")}
    table = Kernels(measure=False)
    assert table.run(("layer",), candidates) == "first"
    assert table.timings == {}


def test_once_pinned_the_first_candidate_is_taken(clock: list[float]) -> None:
    candidates = {"a": taking(clock, 2, "a"), "b": taking(clock, 1, "b")}
    table = Kernels()
    assert table.run(("layer", (3, 3)), candidates) == "b"
    table.pin()
    assert table.run(("layer", (3, 3)), candidates) == "a"
    assert table.run(("unknown",), candidates) == "a", "nothing is measured once pinned"
    table.forget()
    assert table.run(("layer", (3, 3)), candidates) == "b"
    assert table.measure


def test_poisson_batches_share_a_bucket() -> None:
    assert [bucket(n) for n in (0, 1, 2, 3, 64, 65, 128)] == [1, 1, 2, 4, 64, 128, 128]
