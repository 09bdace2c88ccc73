import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plumbline
from plumbline.mechanism import ledger_limit
from plumbline.mechanism.ledger import (
    BudgetExceeded,
    BudgetGuard,
    Ledger,
    LedgerDamaged,
    LedgerError,
    LedgerLocked,
    NoiseReuse,
    Position,
)
from plumbline.mechanism.ledger_format import canonical, encode
from tests.mechanism.forked import in_child, reports_until_killed


def release(noise: float = 1.0) -> dict[str, Any]:
    return {
        "sampling": {"kind": "poisson", "rate": 0.01},
        "queries": [{"name": "gradient", "sensitivity": 1.0, "noise_multiplier": noise}],
        "unbounded_reason": None,
    }


def total(ledger: Ledger, run: str | None = None) -> int:
    return sum(count for _, count in ledger.entries(run))


def counts(ledger: Ledger) -> Counter[str]:
    return Counter({canonical(r): n for r, n in ledger.entries()})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


# Charging and reading back.


def test_what_was_charged_can_be_read_from_the_file_alone(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for step in range(5):
            ledger.charge(release(1.0), run="a", step=step)
        ledger.charge(release(2.0), run="b", step=0, count=100)
        ledger.charge(release(1.0), run="b", step=100)
        expected = [(release(1.0), 6), (release(2.0), 100)]
        assert ledger.entries() == expected
    for again in (Ledger.read(path), Ledger.open(path)):
        assert again.entries() == expected
        assert again.entries("a") == [(release(1.0), 5)]
        assert again.entries("nobody") == []
        assert again.position == ledger.position
        again.close()


def test_what_a_run_has_charged_and_used_can_be_asked(path: Path) -> None:
    with Ledger.open(path, reserve=10) as ledger:
        ledger.charge(release(), run="a", step=0, count=3)
        ledger.charge(release(), run="b", step=0, noise_position=(7, "x"))
        ledger.charge(release(), run="b", step=1, noise_position=(8, "y"))
        assert ledger.runs() == {"a", "b"}
        assert [ledger.charged(run) for run in ("a", "b", "nobody")] == [3, 2, 0]
        assert total(ledger, "a") == 10  # what is reserved and not made is not counted above
        assert ledger.noise_positions("b") == {7, 8}
        assert ledger.noise_positions("a") == set()


def test_a_run_charges_at_most_what_it_may(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for step in range(3):
            ledger.charge(release(), run="a", step=step, noise_position=(step, "x"), most=3)
        with pytest.raises(BudgetExceeded, match="3 of its 3 steps"):
            ledger.charge(release(), run="a", step=3, noise_position=(3, "x"), most=3)
        ledger.charge(release(), run="a", step=2, noise_position=(2, "x"), most=3)  # a replay
        ledger.charge(release(), run="b", step=0, most=1)
        assert (ledger.charged("a"), ledger.charged("b")) == (3, 1)


def test_room_for_a_whole_run_can_be_required_beforehand(path: Path) -> None:
    def at_most_ten(entries: Any) -> None:
        if sum(count for _, count in entries) > 10:
            raise BudgetExceeded("more than ten")

    with Ledger.open(path, guard=at_most_ten) as ledger:
        ledger.charge(release(), run="a", step=0, count=4)
        ledger.require_room(release(2.0), 6)
        with pytest.raises(BudgetExceeded, match="more than ten"):
            ledger.require_room(release(2.0), 7)
        assert total(ledger) == 4


def test_a_charge_returns_the_ledgers_position(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger.position.count == 1  # the first line says what the file is
        first = ledger.charge(release(), run="a", step=0)
        second = ledger.charge(release(), run="a", step=1)
        assert (first.count, second.count) == (3, 4)  # a release line, and a line for each charge
        assert first.hash != second.hash
        assert second == ledger.position


def test_every_line_is_numbered_json_with_a_hash(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(release(), run="a", step=0)
    objects = [json.loads(line) for line in path.read_text().splitlines()]
    assert [o["seq"] for o in objects] == [0, 1, 2]
    assert [o["kind"] for o in objects] == ["ledger", "release", "charge"]
    assert all(len(o["hash"]) == 16 for o in objects)
    assert objects[1]["run"] == "a"
    assert objects[1]["release"] == release()


def test_each_charge_is_synced_before_it_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        synced.append(path.stat().st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    with Ledger.open(path) as ledger:
        assert len(synced) == 2  # the file and its folder
        for step in range(3):
            ledger.charge(release(), run="a", step=step)
            assert synced[-1] == path.stat().st_size
            assert len(synced) == 3 + step


def test_importing_and_charging_loads_no_accountant() -> None:
    code = (
        "import sys, plumbline.mechanism.ledger; "
        "assert 'dp_accounting' not in sys.modules, 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_runs_side_by_side_in_threads_are_all_charged(path: Path) -> None:
    with Ledger.open(path) as ledger:

        def run(name: str) -> None:
            for step in range(10):
                ledger.charge(release(), run=name, step=step)

        threads = [threading.Thread(target=run, args=[name]) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {name: total(Ledger.read(path), name) for name in "abc"} == {"a": 10, "b": 10, "c": 10}


@pytest.mark.parametrize("bad", [{"sigma": float("nan")}, {"sigma": {1, 2}}])
def test_a_release_that_is_not_plain_json_is_refused(path: Path, bad: dict[str, Any]) -> None:
    with Ledger.open(path) as ledger:
        before = path.read_bytes()
        with pytest.raises(LedgerError, match="not plain JSON"):
            ledger.charge(bad, run="a", step=0)
        assert path.read_bytes() == before


def test_a_ledger_that_was_read_or_closed_cannot_be_charged(path: Path) -> None:
    ledger = Ledger.open(path)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="it was closed"):
        ledger.charge(release(), run="a", step=0)
    with pytest.raises(LedgerError, match=r"opened with Ledger\.read"):
        Ledger.read(path).charge(release(), run="a", step=0)


# Charging ahead, and syncing beside the step.


def test_reserving_writes_one_line_for_many_steps_and_gives_back_the_rest(path: Path) -> None:
    with Ledger.open(path, reserve=10) as ledger:
        for step in range(25):
            ledger.charge(release(), run="a", step=step)
            assert total(Ledger.read(path)) == 10 * (step // 10 + 1)  # ahead, never behind
        assert ledger.position.count == 2 + 3
    assert total(Ledger.read(path)) == 25


def test_nothing_is_reserved_that_the_run_may_not_charge(path: Path) -> None:
    with Ledger.open(path, reserve=10) as ledger:
        for step in range(12):
            ledger.charge(release(), run="a", step=step, most=12)
            assert total(Ledger.read(path)) == (10 if step < 10 else 12)


def test_a_crash_overstates_a_reservation_and_never_understates_it(path: Path) -> None:
    def work(report: Callable[[], None]) -> None:
        ledger = Ledger.open(path, reserve=10)
        for step in range(13):
            ledger.charge(release(), run="a", step=step)
            report()
        os.kill(os.getpid(), signal.SIGKILL)

    assert reports_until_killed(work, None) == 13
    assert total(Ledger.read(path)) == 20


@pytest.fixture
def killed(path: Path) -> Path:
    """The ledger of a run that had charged ten steps ahead, by its journal, as it was killed."""
    ledger = Ledger.open(path, reserve=10)
    for step in range(4):
        ledger.charge(release(), run="a", step=step, journal="ab12")
    data = path.read_bytes()
    ledger.close()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("begun", "left"), [(0, 0), (4, 4), (9, 9), (10, 10), (11, 10)])
def test_what_a_killed_run_never_began_is_given_back_once(
    killed: Path, begun: int, left: int
) -> None:
    for _ in range(2):
        with Ledger.open(killed) as ledger:
            ledger.give_back("a", begun, "ab12")
            ledger.give_back("a", begun, "ab12")
            assert ledger.charged("a") == total(ledger) == left
    assert total(Ledger.read(killed)) == left


@pytest.mark.parametrize("journal", [None, "cd34"])
def test_nothing_is_given_back_by_another_journal(killed: Path, journal: str | None) -> None:
    with Ledger.open(killed) as ledger:
        ledger.give_back("a", 4, journal)
        ledger.give_back("b", 0, "ab12")
        assert total(ledger) == 10


def test_only_the_last_charge_is_given_back(killed: Path) -> None:
    with Ledger.open(killed, reserve=10) as ledger:
        ledger.charge(release(), run="a", step=10)  # without a journal
        ledger.give_back("a", 4, "ab12")
        assert total(ledger) == 20


@pytest.mark.parametrize("refunds", [[11], [6, 1], [6, 6]])
def test_a_ledger_that_gives_back_more_than_was_charged_ahead_is_refused(
    killed: Path, refunds: list[int]
) -> None:
    end = Ledger.read(killed).position
    for count in refunds:
        line, end = encode({"kind": "refund", "of": 0, "count": count}, end)
        killed.write_bytes(killed.read_bytes() + line)
    with pytest.raises(LedgerDamaged, match="gives back more steps than were charged ahead"):
        Ledger.read(killed)


def test_a_changed_release_gives_back_what_was_reserved_for_the_old_one(path: Path) -> None:
    with Ledger.open(path, reserve=10) as ledger:
        for step in range(3):
            ledger.charge(release(1.0), run="a", step=step)
        for step in range(3, 7):
            ledger.charge(release(2.0), run="a", step=step)
        ledger.charge(release(1.0), run="b", step=0)
    assert Ledger.read(path).entries() == [(release(1.0), 4), (release(2.0), 4)]


def test_a_charge_that_cannot_be_synced_is_an_error_and_the_ledger_stops(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(path)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LedgerError, match="Input/output error"):
        ledger.charge(release(), run="a", step=0)
    with pytest.raises(LedgerError, match="could not be synced"):
        ledger.charge(release(), run="a", step=0)
    monkeypatch.undo()
    assert total(Ledger.open(path)) == 1  # it may be there: then it counts


# Budgets.


def test_a_guard_sees_the_charge_before_it_is_written_and_can_refuse_it(path: Path) -> None:
    def guard(entries: list[tuple[dict[str, Any], int]]) -> None:
        if sum(n for _, n in entries) > 3:
            raise BudgetExceeded("no more")

    with Ledger.open(path, guard=guard) as ledger:
        for step in range(3):
            ledger.charge(release(), run="a", step=step)
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded, match="no more"):
            ledger.charge(release(), run="a", step=3)
        assert path.read_bytes() == before


def test_a_reservation_shrinks_to_what_the_budget_allows(path: Path) -> None:
    def guard(entries: list[tuple[dict[str, Any], int]]) -> None:
        if sum(n for _, n in entries) > 13:
            raise BudgetExceeded("no more")

    with Ledger.open(path, guard=guard, reserve=8) as ledger:
        for step in range(13):
            ledger.charge(release(), run="a", step=step)
        with pytest.raises(BudgetExceeded):
            ledger.charge(release(), run="a", step=13)


def fake_epsilon(entries: list[tuple[dict[str, Any], int]], *, delta: float) -> float:
    return sum(n / r["queries"][0]["noise_multiplier"] for r, n in entries) * 0.1


def test_a_data_set_budget_is_kept_by_every_later_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def epsilon(entries: list[tuple[dict[str, Any], int]], *, delta: float) -> float:
        asked.append(entries)
        return fake_epsilon(entries, delta=delta)

    monkeypatch.setattr(ledger_limit, "ledger_epsilon", epsilon)
    with Ledger.open(path, limit=(50, 1e-5)) as ledger:
        for step in range(450):
            ledger.charge(release(), run="a", step=step)
    assert len(asked) < 50  # not at every step
    with Ledger.open(path) as ledger:
        assert ledger.limit == (50, 1e-5)
        for step in range(50):
            ledger.charge(release(), run="b", step=step)
        with pytest.raises(BudgetExceeded, match="above its budget of 50"):
            ledger.charge(release(), run="b", step=50)
        with pytest.raises(BudgetExceeded):
            ledger.charge(release(8.0), run="c", step=0)
    with pytest.raises(LedgerError, match="A data set's budget is set once"):
        Ledger.open(path, limit=(51, 1e-5))
    Ledger.open(path, limit=(50, 1e-5)).close()


def test_a_budget_can_be_set_on_a_ledger_that_has_none(path: Path) -> None:
    Ledger.open(path).close()
    Ledger.open(path, limit=(3, 1e-5)).close()
    assert Ledger.read(path).limit == (3, 1e-5)


@given(
    steps=st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 16.0]), st.integers(1, 60))),
    limit=st.floats(0.1, 30),
)
def test_the_budget_guard_decides_as_if_it_asked_every_time(
    steps: list[tuple[float, int]], limit: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_limit, "ledger_epsilon", fake_epsilon)
        guard = BudgetGuard((limit, 1e-5))
        spent: Counter[float] = Counter()
        for noise, n in steps:
            entries = [(release(k), v) for k, v in (spent + Counter({noise: n})).items()]
            if fake_epsilon(entries, delta=1e-5) <= limit:
                guard(entries)
                spent[noise] += n
            else:
                with pytest.raises(BudgetExceeded):
                    guard(entries)


@pytest.mark.parametrize("limit", [(0, 1e-5), (float("inf"), 1e-5), (1, 0), (1, 1)])
def test_an_impossible_budget_is_refused(path: Path, limit: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="limit is"):
        Ledger.open(path, limit=limit)
    assert not path.exists()


def test_epsilon_is_the_accountants_of_all_runs_together(path: Path) -> None:
    from plumbline.mechanism.accountant import epsilon
    from plumbline.mechanism.release import StepRelease

    with Ledger.open(path) as ledger:
        ledger.charge(release(1.0), run="a", step=0, count=30)
        ledger.charge(release(1.0), run="b", step=0, count=20)
        ledger.charge(release(2.0), run="b", step=20, count=10)
    expected = epsilon(
        [(StepRelease.from_dict(release(1.0)), 50), (StepRelease.from_dict(release(2.0)), 10)],
        delta=1e-6,
        accountant="rdp",
    )
    assert Ledger.open(path).epsilon(1e-6, accountant="rdp") == expected
    assert Ledger.read(path).epsilon(1e-6, accountant="rdp") == expected > 0


# Seeded runs.


def test_replaying_a_seeded_step_is_not_charged_twice(path: Path) -> None:
    with Ledger.open(path, reserve=5) as ledger:
        for step in range(4):
            ledger.charge(release(), run="seed-1", step=step, noise_position=(step, f"d{step}"))
    with Ledger.open(path, reserve=5) as ledger:
        before = ledger.position
        for step in (1, 2, 3):
            ledger.charge(release(), run="seed-1", step=step, noise_position=(step, f"d{step}"))
        assert ledger.position == before
        ledger.charge(release(), run="seed-1", step=4, noise_position=(4, "d4"))
        assert total(ledger) == 5
        ledger.charge(release(), run="seed-2", step=1, noise_position=(1, "d1"))
        assert total(ledger) == 6  # another run's noise is another noise


@pytest.mark.parametrize(
    ("digest", "noise", "complaint"),
    [
        pytest.param("other", 1.0, "position 0, with other inputs", id="inputs"),
        pytest.param("digest", 2.0, "position 0, with another release", id="release"),
    ],
)
def test_used_noise_with_anything_else_is_refused(
    path: Path, digest: str, noise: float, complaint: str
) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(release(1.0), run="seed-1", step=0, noise_position=(0, "digest"))
    with Ledger.open(path) as ledger:
        before = path.read_bytes()
        with pytest.raises(NoiseReuse, match=complaint):
            ledger.charge(release(noise), run="seed-1", step=0, noise_position=(0, digest))
        assert path.read_bytes() == before


# One writer.


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(plumbline.__file__).parents[1])}


def test_a_second_process_is_locked_out_and_told_by_whom(path: Path) -> None:
    code = (
        "import sys\n"
        "from plumbline.mechanism.ledger import Ledger\n"
        "ledger = Ledger.open(sys.argv[1])\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LedgerLocked, match=f"in use by process {other.pid};") as caught:
            Ledger.open(path)
        assert caught.value.pid == other.pid
        assert Ledger.read(path).entries() == []  # looking is allowed
        other.communicate("")
    Ledger.open(path).close()


def test_a_second_opening_in_the_same_process_is_locked_out(path: Path) -> None:
    with Ledger.open(path):
        for _ in range(2):  # nor does failing to open it let go of the lock
            with pytest.raises(LedgerLocked, match="which is this one"):
                Ledger.open(path)
        in_child(lambda: None)  # nor does a child that ends
        with pytest.raises(LedgerLocked):
            Ledger.open(path)
    Ledger.open(path).close()


def test_a_ledger_that_is_forgotten_lets_go_of_its_lock(path: Path) -> None:
    Ledger.open(path).charge(release(), run="a", step=0)
    assert total(Ledger.open(path)) == 1


def test_a_forked_child_cannot_charge_and_does_not_keep_the_lock(path: Path) -> None:
    ledger = Ledger.open(path)
    read_end, write_end = os.pipe()

    def charge() -> str:
        with pytest.raises(LedgerError, match="this process is a fork of it") as caught:
            ledger.charge(release(), run="a", step=0)
        ledger.close()
        return str(caught.value)

    assert f"process {os.getpid()}" in in_child(charge)
    ledger.charge(release(), run="a", step=0)
    child = os.fork()
    if child == 0:  # a worker that outlives the ledger
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    ledger.close()
    Ledger.open(path).close()
    os.close(write_end)
    os.close(read_end)
    os.waitpid(child, 0)


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "appended", "truncated"])
def test_a_file_that_changes_under_the_ledger_stops_it(path: Path, how: str) -> None:
    ledger = Ledger.open(path)
    if how == "deleted":
        path.unlink()
    elif how == "moved":
        path.rename(path.with_suffix(".moved"))
    elif how == "replaced":
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)
    elif how == "appended":
        with path.open("a") as file:
            file.write("hello\n")
    else:
        os.truncate(path, 10)
    reason = {
        "deleted": "its file was moved away or deleted",
        "moved": "its file was moved away or deleted",
        "replaced": "another file was put in its place",
    }.get(how, "changed by others")
    with pytest.raises(LedgerError, match=reason):
        ledger.charge(release(), run="a", step=0)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_ledger_moved_away_is_noticed_by_steps_charged_ahead_too(
    path: Path, replaced: bool
) -> None:
    ledger = Ledger.open(path, reserve=10)
    ledger.charge(release(), run="a", step=0)
    moved = path.rename(path.with_suffix(".moved"))
    if replaced:  # the file is still there and still locked; its name is another ledger's
        Ledger.open(path).close()
    with pytest.raises(LedgerError, match=r"in its place" if replaced else r"moved away"):
        ledger.charge(release(), run="a", step=1)
    assert total(Ledger.read(moved)) == 10  # what was charged ahead stays charged


def test_a_ledger_replaced_before_it_is_locked_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_first(fd: int, operation: int) -> None:
        monkeypatch.undo()
        path.unlink()
        path.touch()

    monkeypatch.setattr(fcntl, "flock", replace_first)
    with pytest.raises(LedgerError, match="in its place"):
        Ledger.open(path)


def test_a_ledger_is_found_from_another_working_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with Ledger.open(path.name) as ledger:
        monkeypatch.chdir("/")
        ledger.charge(release(), run="a", step=0)
    assert total(Ledger.read(path)) == 1


def test_a_later_checkpoint_is_known(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(release(), run="a", step=0)
        first = ledger.position
        ledger.note_checkpoint("a", step=1, token="one")
        assert ledger.later_checkpoint("a", token="one", position=first) is None
        ledger.charge(release(), run="a", step=1)
        second = ledger.position
        ledger.note_checkpoint("a", step=2, token="two")
    ledger.note_checkpoint("a", step=3, token="of a closed ledger")
    ledger = Ledger.read(path)
    assert ledger.later_checkpoint("a", token="one", position=first) == 2
    assert ledger.later_checkpoint("a", token="two", position=second) is None
    assert ledger.later_checkpoint("a", token="new", position=ledger.position) is None
    assert ledger.later_checkpoint("b", token="one", position=first) is None
    assert total(ledger) == 2


# Damage.


def written(path: Path) -> tuple[bytes, list[tuple[int, int, Counter[str]]]]:
    """A ledger of two sessions, and its charges: (start, end) in the file, and counts after."""
    marks = []
    for session in range(2):
        with Ledger.open(path, reserve=1 + session) as ledger:
            for step in range(3):
                for run in "ab":
                    noise = 1.0 if run == "a" else 2.0 + step // 2  # b's release changes
                    ledger.charge(release(noise), run=f"{run}{session}", step=step)
                    data = path.read_bytes()
                    last = data.rindex(b"\n", 0, -1) + 1
                    marks.append((last, len(data), counts(ledger)))
    return path.read_bytes(), marks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Any]:
    return written(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


def at_least(spent: Counter[str], expected: Counter[str]) -> bool:
    return all(spent[key] >= n for key, n in expected.items())


def due(marks: list[tuple[int, int, Counter[str]]], cut: int) -> Counter[str]:
    """What a file cut at `cut` must count: charges in it, and one that was begun."""
    most: Counter[str] = Counter()
    for start, _, after in marks:
        if start < cut:
            most |= after
    return most


def test_cut_at_any_byte_it_never_counts_too_little(
    whole: tuple[bytes, Any], tmp_path: Path
) -> None:
    data, marks = whole
    path = tmp_path / "cut"
    path.write_bytes(data)
    given_back = data.index(b'"kind":"refund"')
    for cut in range(len(data), -1, -1):
        os.truncate(path, cut)
        ledger = Ledger.read(path)
        if cut < given_back:
            assert at_least(counts(ledger), due(marks, cut)), cut


@given(st.data())
def test_a_cut_ledger_is_repaired_on_opening_and_goes_on(
    whole: tuple[bytes, Any], tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    data, _ = whole
    cut = draw.draw(st.integers(0, len(data)))
    path = tmp_path_factory.mktemp("cut") / "ledger"
    path.write_bytes(data[:cut])
    before = counts(Ledger.read(path))
    with Ledger.open(path) as ledger:
        assert counts(ledger) == before
        ledger.charge(release(9.0), run="next", step=0)
    after = Ledger.open(path)
    assert counts(after) == before + Counter({canonical(release(9.0)): 1})
    kept = data[:cut].rpartition(b"\n")[0]
    assert path.read_bytes().startswith(kept)


def test_a_flipped_bit_is_refused_with_its_line_or_counted_as_torn(
    whole: tuple[bytes, Any], tmp_path: Path
) -> None:
    data, _ = whole
    path = tmp_path / "flipped"
    # A last line that charges, so that counting it too low would show.
    data = data[: data.index(b'"kind":"refund"')].rpartition(b"\n")[0] + b"\n"
    path.write_bytes(data)
    spent = counts(Ledger.read(path))
    last = data.count(b"\n")
    random_bits = random.Random(0)
    with path.open("r+b", buffering=0) as file:
        for place in range(len(data)):
            os.pwrite(file.fileno(), bytes([data[place] ^ 1 << random_bits.randrange(8)]), place)
            line = data.count(b"\n", 0, place) + 1
            if line < last:
                with pytest.raises(LedgerDamaged, match=f"line {line}: "):
                    Ledger.read(path)
            else:
                # The last line counts as torn, unless the flip made two lines of it.
                with contextlib.suppress(LedgerDamaged):
                    assert at_least(counts(Ledger.read(path)), spent)
            os.pwrite(file.fileno(), data[place : place + 1], place)


@pytest.mark.parametrize(
    ("damage", "line", "reason"),
    [
        pytest.param(lambda ls: ls[:3] + ls[4:], 4, "lines are missing", id="a-line-lost"),
        pytest.param(lambda ls: ls[:3] + ls[2:], 4, "repeated", id="a-line-twice"),
        pytest.param(lambda ls: [ls[0], ls[2], ls[1], *ls[3:]], 2, "changed", id="exchanged"),
        pytest.param(
            lambda ls: [*ls[:3], ls[3].replace(b'"step":1', b'"step":7'), *ls[4:]],
            4,
            "checksum does not fit",
            id="edited",
        ),
        pytest.param(lambda ls: [*ls[:3], b"\n", *ls[3:]], 4, "not complete", id="empty-line"),
        pytest.param(lambda ls: [b"hello\n", *ls], 1, "not the beginning", id="another-file"),
        pytest.param(lambda ls: [b"hello"], 1, "not the beginning", id="another-short-file"),
        pytest.param(
            lambda ls: [ls[0].replace(b'"id":"', b'"id":"x')], 1, "checksum", id="the-only-line"
        ),
    ],
)
def test_damage_is_refused_with_the_line_and_the_reason(
    path: Path, damage: Callable[[list[bytes]], list[bytes]], line: int, reason: str
) -> None:
    with Ledger.open(path) as ledger:
        for step in range(5):
            ledger.charge(release(), run="a", step=step)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    for look in (Ledger.read, Ledger.open):
        with pytest.raises(LedgerDamaged, match=reason) as caught:
            look(path)
        assert caught.value.line == line
    assert path.read_bytes() == before


def test_a_torn_line_costs_the_most_it_can_have_cost(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(release(0.5), run="old", step=0, count=1000)
    with Ledger.open(path) as ledger:
        ledger.charge(release(1.0), run="a", step=0, count=7)
        ledger.charge(release(2.0), run="b", step=0)
        ledger.charge(release(1.0), run="a", step=7)
    path.write_bytes(path.read_bytes()[:-40])
    # A run of the last session, at its dearest; runs of earlier sessions cannot have written it.
    assert Ledger.read(path).entries() == [
        (release(0.5), 1000),
        (release(1.0), 7 + 7),
        (release(2.0), 1 + 1),
    ]


def test_repairing_survives_its_own_crash(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for step in range(3):
            ledger.charge(release(), run="a", step=step)
    path.write_bytes(path.read_bytes()[:-5])
    torn = path.read_bytes()

    def crash(after: int) -> None:
        real = os.pwrite

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            real(fd, data[:after], offset)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.pwrite = pwrite  # only in the child
        Ledger.open(path)

    for after in range(0, 120, 7):
        path.write_bytes(torn)
        reports_until_killed(lambda _, after=after: crash(after), None)  # type: ignore[misc]
        assert total(Ledger.read(path)) == 3
        assert total(Ledger.open(path)) == 3


def test_a_checkpoints_position_finds_a_lost_tail(path: Path) -> None:
    with Ledger.open(path) as ledger:
        positions = [ledger.charge(release(), run="a", step=step) for step in range(4)]
    ledger = Ledger.open(path)
    for position in positions:
        ledger.verify_position(position)
    ledger.close()
    everything = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(everything[:-1]))
    shorter = Ledger.read(path)
    shorter.verify_position(positions[2])
    with pytest.raises(LedgerDamaged, match="line 6: it is missing: the checkpoint has seen 6"):
        shorter.verify_position(positions[3])
    with Ledger.open(path) as ledger:
        ledger.charge(release(), run="b", step=0, count=2)
        with pytest.raises(LedgerDamaged, match="line 6: it is not the line that the checkpoint"):
            ledger.verify_position(positions[3])
    other = Ledger.open(path.with_suffix(".other"))
    with pytest.raises(LedgerDamaged, match="line 1: it is not the line"):
        other.verify_position(Position(1, json.loads(everything[0])["hash"]))


# Crashes.


def kill_between(path: Path, seed: int) -> None:
    """Kills a child from outside, wherever it is after a random number of charges."""

    def work(report: Callable[[], None]) -> None:
        ledger = Ledger.open(path)
        step = 0
        while True:
            ledger.charge(release(), run=str(seed), step=step)
            report()
            step += 1

    reported = reports_until_killed(work, random.Random(seed).randrange(12))
    assert reported <= total(Ledger.open(path), str(seed)) <= reported + 1


def kill_within(path: Path, seed: int) -> None:
    """Kills a child in the middle of a write, after a random number of bytes."""
    chance = random.Random(seed)
    calls, part = chance.randrange(1, 8), chance.random()

    def work(report: Callable[[], None]) -> None:
        ledger = Ledger.open(path)
        real, done = os.pwrite, 0

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            nonlocal done
            done += 1
            if done < calls:
                return real(fd, data, offset)
            real(fd, data[: int(part * len(data))], offset)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.pwrite = pwrite  # only in the child
        for step in range(calls):
            ledger.charge(release(), run=str(seed), step=step)
            report()

    reported = reports_until_killed(work, None)
    assert reported == calls - 1
    assert reported <= total(Ledger.open(path), str(seed)) <= reported + 1


@pytest.mark.parametrize("kill", [kill_between, kill_within])
def test_killed_at_any_point_it_counts_every_charge_that_returned(
    path: Path, kill: Callable[[Path, int], None]
) -> None:
    for seed in range(10):
        kill(path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [kill_between, kill_within])
def test_killed_at_many_points_it_counts_every_charge_that_returned(
    path: Path, kill: Callable[[Path, int], None]
) -> None:
    for seed in range(100):
        kill(path, 1000 + seed)


# Disks.


def test_a_full_disk_is_an_error_and_leaves_the_ledger_as_it_was(path: Path) -> None:
    def fill() -> None:
        with Ledger.open(path) as ledger:
            ledger.charge(release(), run="a", step=0)
            before = path.read_bytes()
            unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, unlimited[1]))
            for _ in range(2):
                with pytest.raises(LedgerError, match=r"cannot write to ledger .*File too large"):
                    ledger.charge(release(), run="a", step=1)
                assert path.read_bytes() == before
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            ledger.charge(release(), run="a", step=1)

    in_child(fill)
    assert total(Ledger.open(path)) == 2


def test_a_full_disk_that_cannot_be_tidied_leaves_a_torn_line_that_counts(path: Path) -> None:
    def fill() -> None:
        ledger = Ledger.open(path)
        ledger.charge(release(), run="a", step=0)
        size = path.stat().st_size
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))

        def ftruncate(fd: int, length: int) -> None:
            raise OSError(5, "Input/output error")

        os.ftruncate = ftruncate  # only in the child
        with pytest.raises(LedgerError, match="File too large"):
            ledger.charge(release(), run="a", step=1)
        assert path.stat().st_size == size + 20
        with pytest.raises(LedgerError, match="neither written nor taken back"):
            ledger.charge(release(), run="a", step=1)

    in_child(fill)
    assert total(Ledger.read(path)) == 2
    assert total(Ledger.open(path)) == 2


def test_a_disk_too_full_to_create_a_ledger_leaves_nothing_wrong(path: Path) -> None:
    def fill() -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
        with pytest.raises(LedgerError, match="File too large"):
            Ledger.open(path)

    in_child(fill)
    Ledger.open(path).close()


def test_a_disk_too_full_to_repair_leaves_the_torn_line(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge(release(), run="a", step=0)
        ledger.charge(release(), run="a", step=1)
    path.write_bytes(path.read_bytes()[:-1])
    size = path.stat().st_size

    def fill() -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        with pytest.raises(LedgerError, match="File too large"):
            Ledger.open(path)

    in_child(fill)
    assert total(Ledger.read(path)) == 2
    assert total(Ledger.open(path)) == 2


def unprivileged(folder: Path, work: Callable[[], None]) -> None:
    """Runs `work` in a child that stands in `folder` and has no rights beyond the file modes."""

    def drop() -> None:
        os.chdir(folder)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work()

    in_child(drop)


def test_a_read_only_folder_or_file_is_a_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with Ledger.open(folder / "old") as ledger:
        ledger.charge(release(), run="a", step=0)
    (folder / "old").chmod(0o444)
    folder.chmod(0o555)

    def look() -> None:
        with pytest.raises(LedgerError, match="cannot open ledger new: Permission denied"):
            Ledger.open("new")
        with pytest.raises(LedgerError, match="Choose a folder that you may write to"):
            Ledger.open("old")
        assert total(Ledger.read("old")) == 1

    unprivileged(folder, look)
    folder.chmod(0o755)


def test_a_missing_folder_or_ledger_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="create its folder"):
        Ledger.open(tmp_path / "nowhere" / "ledger")
    with pytest.raises(LedgerError, match="cannot read ledger"):
        Ledger.read(tmp_path / "nothing")
