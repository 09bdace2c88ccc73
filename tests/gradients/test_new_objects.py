"""What was made during a run is listed, whatever else the process holds."""

import gc
from collections.abc import Iterator

import pytest

from plumbline.gradients.new_objects import NewObjects


class Thing:
    pass


def things(found: list[object]) -> set[Thing]:
    return {one for one in found if type(one) is Thing}


@pytest.fixture(autouse=True)
def _nothing_stays_set_aside() -> Iterator[None]:
    yield
    assert gc.get_freeze_count() == 0


def test_only_what_is_new_is_listed() -> None:
    old = [Thing()]
    watch = NewObjects()
    new = [Thing(), Thing()]
    old.append(Thing())  # held by what was there before
    gc.collect()  # what grows old meanwhile is new all the same
    found = watch.end()
    assert things(found) == {*new, old[1]}
    assert len(found) < 1_000


def test_a_watch_within_another_misses_nothing() -> None:
    outer = NewObjects()
    first = Thing()
    inner = NewObjects()
    second = Thing()
    assert second in things(inner.end())
    third = Thing()
    assert things(outer.end()) == {first, second, third}


def test_one_that_ends_later_than_another_began_misses_nothing() -> None:
    one = NewObjects()
    other = NewObjects()
    first = Thing()
    one.end()
    again = NewObjects()  # may not set aside what the other still has to list
    assert first in things(other.end())
    again.end()


def test_what_the_user_has_set_aside_stays_so() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        watch = NewObjects()
        new = Thing()
        assert things(watch.end()) == {new}
        assert gc.get_freeze_count() == before
    finally:
        gc.unfreeze()
