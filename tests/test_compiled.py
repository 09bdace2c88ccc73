"""Compiled loops, in threads."""

import os

import numba
import pytest
import torch

import plumbline.compiled
from plumbline.compiled import Together, compiled, in_threads, run_of, worth_loading


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 5, 1000])
def test_every_part_is_done_once(threads: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    done = torch.zeros(size)

    def work(start: int, stop: int) -> None:
        done[start:stop] += 1

    in_threads(work, size, 10)
    assert bool((done == 1).all())


@pytest.mark.parametrize(("cost", "parts"), [((1 << 23) - 1, 1), (1 << 23, 2), (None, 2)])
def test_threads_are_woken_for_enough_work(
    cost: int | None, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    done: list[tuple[int, int]] = []
    together = Together()
    together.add(
        lambda start, stop: done.append((start, stop)), 10, **({"cost": cost} if cost else {})
    )
    together.run()
    assert sorted(done) == [(0, 10)] if parts == 1 else [(0, 5), (5, 10)]


def test_what_is_worth_loading_depends_on_the_run_that_is_made() -> None:
    with run_of(5000):
        assert worth_loading()
        with run_of(10):
            assert not worth_loading()
        assert worth_loading()
    with pytest.raises(ZeroDivisionError), run_of(5000):
        raise ZeroDivisionError
    assert not worth_loading()


def test_an_error_of_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def work(start: int, stop: int) -> None:
        if start:
            raise ValueError("in the second part")

    with pytest.raises(ValueError, match="second part"):
        in_threads(work, 100, 1)


@pytest.mark.parametrize("error", [RuntimeError("no locator available"), OSError("disk full")])
def test_where_nothing_can_be_kept_loops_are_compiled_in_every_process(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = numba.njit

    def read_only(*given: object, cache: bool = False, **options: object) -> object:
        if cache:
            raise error
        return right(*given, **options)

    monkeypatch.setattr(numba, "njit", read_only)
    one_more = compiled("int64(int64)")(lambda x: x + 1)
    assert one_more(1) == 2


def test_without_torchs_own_threads_others_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(plumbline.compiled, "_openmp", lambda: None)
    done = torch.zeros(100)

    def work(start: int, stop: int) -> None:
        done[start:stop] += 1

    in_threads(work, 100, 1)
    assert bool((done == 1).all())


def test_a_forked_child_does_not_wait_for_its_parents_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    in_threads(lambda start, stop: None, 100, 1)  # the parent has threads now
    child = os.fork()
    if child == 0:
        in_threads(lambda start, stop: None, 100, 1)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
