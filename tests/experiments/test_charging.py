"""Every run on a table is charged to the table's ledger, whoever makes it and however it ends."""

import json
import math
from pathlib import Path

import pytest

from plumbline.experiments import compare, mark_released, run, select, tune
from plumbline.experiments.charged_runs import ChargedRuns, runs_beside
from plumbline.experiments.charging import apply_limit, read_account
from plumbline.experiments.files import FileError
from plumbline.experiments.recipe import DataPart
from plumbline.experiments.selecting import RandomCount
from plumbline.experiments.settling import settled
from plumbline.experiments.table_ledgers import ledgers_of
from plumbline.experiments.together import totals
from plumbline.experiments.verification import CONFIRMED, CONTRADICTED, UNKNOWN, verify
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.ledger import BudgetExceeded, Ledger, LedgerError
from plumbline.mechanism.release import StepRelease, release_from_dict
from plumbline.mechanism.shared_ledger import SharedLedger
from tests.experiments.small_table import patients, recipe, spec

DELTA = 1e-5


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return patients(tmp_path / "patients.csv")


def ledger_of(table: Path) -> Path:
    (path,) = ledgers_of(DataPart(name="table", options={"path": str(table)})).paths
    return path


def book_of(table: Path) -> SharedLedger:
    return SharedLedger.read(ledger_of(table))


def digests_of(table: Path) -> set[str]:
    """All that a table is recognised by."""
    record = json.loads(ledger_of(table).with_name("table.PRIVATE").read_text().split("\n")[1])
    digests = record["sketch"]["digests"]
    rows = {digests[at : at + 16] for at in range(0, len(digests), 16)}
    assert len(rows) > 200
    return rows | {record["key"], *record["wholes"], *record["files"]}


def test_a_run_is_charged_to_the_ledger_of_its_table(table: Path, tmp_path: Path) -> None:
    one = spec(table)
    result = run(one, tmp_path)
    folder, book = tmp_path / one.folder, book_of(table)
    own = Ledger.read(folder / "ledger")
    assert book.runs() == own.runs()
    assert book.entries() == own.entries()
    assert sum(count for _, count in book.entries()) == 6
    account = read_account(folder)
    assert account is not None
    assert (account.run, account.ledgers) == (*book.runs(), (ledger_of(table),))
    about = book.about(account.run)
    assert (about["title"], about["part"]) == (one.name, "run")
    assert result.budget is not None
    assert result.budget["everything"]["epsilon"] == pytest.approx(result.epsilon)
    assert result.budget["released"]["runs"] == {}
    run(one, tmp_path)  # finished: read, and not charged again
    assert book_of(table).position == book.position


def test_nothing_private_of_the_table_is_in_a_runs_folder(table: Path, tmp_path: Path) -> None:
    """The sketch stays in the state folder: no digest of a row is in what a run leaves."""
    run(spec(table), tmp_path)
    private = digests_of(table)
    for path in [*tmp_path.rglob("*/*"), ledger_of(table)]:
        content = path.read_bytes() if path.is_file() else b""
        assert path.name != "table.PRIVATE"
        assert not any(one.encode() in content for one in private), path.name


def test_other_data_have_a_ledger_of_the_run_alone(tmp_path: Path) -> None:
    from tests.experiments.small import spec as adult

    one = adult()
    assert run(one, tmp_path).budget is None
    assert read_account(tmp_path / one.folder) is None


def test_an_interrupted_run_is_charged_for_what_it_made(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, steps = spec(table), []

    def stop(done: int, total: int) -> None:
        steps.append(done)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(one, tmp_path, stop)
    assert sum(count for _, count in book_of(table).entries()) == 2
    run(one, tmp_path)
    own = Ledger.read(tmp_path / one.folder / "ledger")
    assert book_of(table).entries() == own.entries()
    assert sum(count for _, count in own.entries()) == 6


def test_a_comparison_in_several_processes_is_charged_as_a_whole(
    table: Path, tmp_path: Path
) -> None:
    rows = [{"name": "nonprivate"}, {"name": "dpsgd", "settings": {"clip": 0.5}}]
    made = recipe(table, methods=rows, seeds=[0, 1, 2])
    compare(made, tmp_path / "out", workers=2)
    found = totals(runs_beside(tmp_path / "out", single=False), delta=DELTA)
    assert found.everything.parts == {"comparison": 6}
    assert (found.everything.private, len(found.everything.unbounded)) == (3, 3)
    assert not found.everything.bounded
    assert "3 of them had no privacy (nonprivate)" in found.everything_words
    book = book_of(table)
    folders = {book.about(name)["folder"] for name in book.runs()}
    assert folders == {str(path.parent) for path in (tmp_path / "out").glob("*/ledger")}
    charged: list[tuple[StepRelease, int]] = []
    for path in (tmp_path / "out").glob("dpsgd*/ledger"):
        own = Ledger.read(path).entries()
        charged += [(StepRelease.from_dict(release), count) for release, count in own]
    expected = epsilon(charged, delta=DELTA)
    assert found.everything.epsilon == pytest.approx(expected, rel=1e-12)


def test_trials_are_named(table: Path, tmp_path: Path) -> None:
    made = recipe(table, tune={"trials": 2, "validation": 0.2, "seeds": [0]})
    tune(made, tmp_path / "out", workers=1)
    found = totals(runs_beside(tmp_path / "out", single=False), delta=DELTA)
    assert found.everything_words.startswith(
        "Everything that was run on this table: 2 trials. Together that costs a record at most"
    )


def test_a_schema_that_several_runs_use_is_charged_once(tmp_path: Path) -> None:
    table = patients(tmp_path / "patients.csv", 3000)
    made = recipe(table, seeds=[0, 1])
    options = {k: v for k, v in made.data.options.items() if k not in ("ranges", "records")}
    budget = {"epsilon": 9.0, "delta": DELTA, "steps": 4, "sampling_rate": 0.1}
    changes = {"data": {"name": "table", "options": options}, "budget": budget}
    made = settled(recipe(table, seeds=[0, 1], **changes), tmp_path / "out").recipe
    compare(made, tmp_path / "out", workers=1)
    book = book_of(table)
    (schema,) = (name for name in book.runs() if name.startswith("schema-"))
    assert [count for _, count in book.entries(schema)] == [1]
    runs = book.runs() - {schema}
    assert len(runs) == 2
    assert all(book.about(one)["before"] == [schema] for one in runs)


def test_a_private_selection_is_charged_once_before_its_candidates(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandomCount, "draw", lambda *_: 3)
    made = recipe(table, tune={"validation": 0.2})
    found = select(made, "dpsgd", tmp_path / "out", epsilon=12.0, mean=2.0)
    book = book_of(table)
    (name,) = book.runs()  # how many candidates there were is nobody's business
    ((release, count),) = book.entries()
    assert count == 1
    stated = epsilon([(release_from_dict(release), 1)], delta=DELTA)
    assert stated == pytest.approx(found.result.epsilon)
    assert read_account(tmp_path / "out" / found.result.folder) == (name, (ledger_of(table),))
    both = totals(ChargedRuns([ledger_of(table)]), delta=DELTA)
    assert both.everything_words.startswith(
        "Everything that was run on this table: 1 private selection."
    )


def test_a_seeded_selection_has_no_bound(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandomCount, "draw", lambda *_: 1)
    made = recipe(table, tune={"validation": 0.2}, noise="seeded")
    apply_limit(made, None, 100.0)
    found = select(made, "dpsgd", tmp_path / "out", epsilon=12.0, mean=2.0, seed=0)
    both = totals(ChargedRuns([ledger_of(table)]), delta=DELTA)
    assert both.everything.parts == {"selection": 1}
    assert not both.everything.bounded
    with pytest.raises(BudgetExceeded, match="comes from a seed"):
        mark_released(tmp_path / "out" / found.result.folder)


# Ledgers that are named, and limits.


def test_a_ledger_that_is_named_takes_the_place_of_both(table: Path, tmp_path: Path) -> None:
    named = tmp_path / "named"
    rows = [{"name": "nonprivate"}, {"name": "dpsgd", "settings": {"clip": 0.5}}]
    made = recipe(table, methods=rows, seeds=[0, 1])
    compare(made, tmp_path / "out", workers=1, ledger=named)
    assert len(SharedLedger.read(named).runs()) == 4
    assert not list((tmp_path / "out").glob("*/ledger"))
    assert not ledger_of(table).exists()
    found = totals(runs_beside(tmp_path / "out", single=False), delta=DELTA)
    assert found.everything.parts == {"comparison": 4}
    assert "on this ledger" in found.everything_words


def test_a_run_that_could_not_be_released_is_refused_before_its_first_step(
    table: Path, tmp_path: Path
) -> None:
    made = recipe(table)
    with pytest.raises(BudgetExceeded, match="Nothing was charged"):
        apply_limit(made, None, 1.0, to_release=True)
    assert not ledger_of(table).exists()  # what was refused sets no limit
    apply_limit(made, None, 1.0)  # a comparison is only looked at
    with pytest.raises(BudgetExceeded, match="could not be released"):
        run(spec(table), tmp_path)
    assert book_of(table).entries() == []
    compare(made, tmp_path / "out", workers=1)
    assert sum(count for _, count in book_of(table).entries()) == 6


def test_a_limit_needs_a_ledger_that_runs_share(tmp_path: Path) -> None:
    from tests.experiments.small import recipe as adult

    with pytest.raises(ValueError, match="name one with --ledger"):
        apply_limit(adult(), None, 3.0)
    apply_limit(adult(), tmp_path / "named", 3.0)
    assert SharedLedger.read(tmp_path / "named").released_limit == (3.0, DELTA)


def test_a_damaged_ledger_of_a_table_is_said_with_what_to_do(table: Path, tmp_path: Path) -> None:
    run(spec(table), tmp_path)
    ledger_of(table).write_text("nonsense\n")
    with pytest.raises(LedgerError, match=r"line 1: .* name it with --ledger"):
        run(spec(table, seed=1), tmp_path)


# Lost ledgers, and what can be verified.


def test_a_state_folder_that_is_lost_takes_nothing_from_the_totals_of_a_folder(
    table: Path, tmp_path: Path
) -> None:
    first, second = spec(table), spec(table, seed=1)
    run(first, tmp_path / "out")
    ledger_of(table).unlink()
    run(second, tmp_path / "out")
    found = totals(runs_beside(tmp_path / "out", single=False), delta=DELTA)
    assert found.everything.runs == 2
    both = [
        (StepRelease.from_dict(release), count)
        for path in (tmp_path / "out").glob("*/ledger")
        for release, count in Ledger.read(path).entries()
    ]
    assert found.everything.epsilon == pytest.approx(epsilon(both, delta=DELTA))
    ledger_of(table).unlink()
    lost = totals(runs_beside(tmp_path / "out", single=False), delta=DELTA)
    assert lost.everything.runs == 2
    assert "could not be read" in lost.notes[0]


def test_what_was_charged_there_is_verified(table: Path, tmp_path: Path) -> None:
    one = spec(table)
    run(one, tmp_path)
    ledger, folder = ledger_of(table), tmp_path / one.folder

    def outcome() -> str:
        (check,) = (c for c in verify(folder).checks if c.what == "shared ledger")
        assert str(ledger.parent) not in check.words  # a card shows it
        return check.outcome

    assert outcome() == CONFIRMED
    kept = ledger.read_bytes()
    ledger.write_bytes(b"\n".join(kept.split(b"\n")[:3]) + b"\n")
    assert outcome() == CONTRADICTED
    ledger.unlink()
    assert outcome() == UNKNOWN
    (folder / "account.json").write_text("{}")
    with pytest.raises(FileError, match="does not name ledgers"):
        read_account(folder)


def test_totals_of_a_ledger_name_what_has_no_bound(table: Path, tmp_path: Path) -> None:
    seeded = spec(table, noise="seeded")
    run(seeded, tmp_path)
    run(spec(table, methods=[{"name": "nonprivate"}]), tmp_path)
    run(spec(table), tmp_path)
    found = totals(ChargedRuns([ledger_of(table)]), delta=DELTA)
    total = found.everything
    assert (total.private, total.seeded, len(total.unbounded)) == (2, 1, 1)
    assert total.to_json()["epsilon"] is None
    assert math.isfinite(total.epsilon)
    assert found.everything_words == (
        "Everything that was run on this table: 3 runs. What they cost together has no bound, "
        "since 1 of them had no privacy (nonprivate); and 1 of them drew noise from a seed, and "
        f"who knows that knows the noise. The other one costs a record {total.cost}."
    )
