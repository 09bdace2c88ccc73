"""What was released is marked before it leaves, counts together, and keeps to its limit."""

import shutil
from pathlib import Path

import pytest

from plumbline.experiments import mark_released, run
from plumbline.experiments.charging import apply_limit
from plumbline.experiments.exporting import export
from plumbline.experiments.files import FileError
from plumbline.experiments.run_result import read_result
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.ledger import BudgetExceeded, Ledger
from plumbline.mechanism.release import StepRelease
from plumbline.mechanism.shared_ledger import SharedLedger
from tests.experiments.small import spec as adult
from tests.experiments.small_table import patients, recipe, spec
from tests.experiments.test_charging import book_of, digests_of, ledger_of

DELTA = 1e-5


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return patients(tmp_path / "patients.csv")


@pytest.fixture
def folders(table: Path, tmp_path: Path) -> list[Path]:
    """Three finished runs on the table."""
    made = [spec(table, seed) for seed in range(3)]
    for one in made:
        run(one, tmp_path / "out")
    return [tmp_path / "out" / one.folder for one in made]


def cost(folders: list[Path]) -> float:
    charged = [
        (StepRelease.from_dict(release), count)
        for folder in folders
        for release, count in Ledger.read(folder / "ledger").entries()
    ]
    return epsilon(charged, delta=DELTA)


def test_released_models_count_together_and_the_others_do_not(folders: list[Path]) -> None:
    first = mark_released(folders[0])
    stated = read_result(folders[0])
    assert stated is not None
    assert first.released.epsilon == pytest.approx(stated.epsilon)
    assert first.released_words.startswith("The released model on this table costs a record")
    second = mark_released(folders[2])
    assert second.released.runs == 2
    assert second.released.epsilon == pytest.approx(cost([folders[0], folders[2]]))
    assert second.everything.epsilon == pytest.approx(cost(folders))
    assert mark_released(folders[2]) == second  # once is enough


def test_the_mark_is_in_the_shared_and_in_the_own_ledger(folders: list[Path], table: Path) -> None:
    mark_released(folders[1])
    (name,) = Ledger.read(folders[1] / "ledger").runs()
    assert book_of(table).released == (name,)
    assert SharedLedger.read(folders[1] / "ledger").released == (name,)


def test_a_limit_refuses_and_then_nothing_is_marked(folders: list[Path], table: Path) -> None:
    apply_limit(recipe(table), None, cost(folders[:1]) + 0.1)
    assert mark_released(folders[0]).limit is not None
    with pytest.raises(BudgetExceeded, match="with the 1 released already"):
        mark_released(folders[1])
    assert len(book_of(table).released) == 1
    assert SharedLedger.read(folders[1] / "ledger").released == ()


def test_an_export_is_released_and_has_no_digest_of_a_row(
    folders: list[Path], table: Path, tmp_path: Path
) -> None:
    apply_limit(recipe(table), None, cost(folders[:1]) + 0.1)
    found = export(folders[0], tmp_path / "model", program=False)
    (name,) = Ledger.read(folders[0] / "ledger").runs()
    assert book_of(table).released == (name,)
    assert any("The limit is epsilon" in note for note in found.spent)
    private = digests_of(table)
    for path in found.folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not any(one.encode() in content for one in private), path.name
    with pytest.raises(BudgetExceeded):
        export(folders[1], tmp_path / "another", program=False)
    assert not (tmp_path / "another").exists()


def test_a_ledger_that_is_lost_is_asked_for(
    folders: list[Path], table: Path, tmp_path: Path
) -> None:
    ledger_of(table).unlink()
    with pytest.raises(FileError, match="name another one with --ledger"):
        mark_released(folders[0])
    found = mark_released(folders[0], ledger=tmp_path / "other")
    assert found.released.epsilon == pytest.approx(cost(folders[:1]))
    assert mark_released(folders[0]) == found  # its folder names the other one now


@pytest.mark.parametrize("own", [False, True])
def test_a_ledger_that_is_named_takes_the_place_of_none_that_is_there(
    folders: list[Path], table: Path, tmp_path: Path, own: bool
) -> None:
    named = [folder / "ledger" if own else tmp_path / "other" for folder in folders]
    apply_limit(recipe(table), None, cost(folders[:1]) + 0.1)
    mark_released(folders[0])
    with pytest.raises(BudgetExceeded, match="with the 1 released already"):
        mark_released(folders[1], ledger=named[1])
    with pytest.raises(BudgetExceeded, match="with the 1 released already"):
        mark_released(folders[1])
    found = mark_released(folders[0], ledger=named[0])
    assert found.limit is not None
    assert found.released.runs == 1


def test_a_run_without_a_shared_ledger_is_marked_in_its_own(tmp_path: Path) -> None:
    one = adult()
    run(one, tmp_path)
    found = mark_released(tmp_path / one.folder)
    assert found.released.runs == 1
    assert found.released_words.startswith("The released model here: What it costs has no bound")


def test_what_is_no_finished_run_is_refused(folders: list[Path], tmp_path: Path) -> None:
    (folders[0] / "result.json").unlink()
    with pytest.raises(FileError, match="no finished run"):
        mark_released(folders[0])
    with pytest.raises(FileError, match="no finished run"):
        mark_released(tmp_path / "nowhere")


def test_a_copied_run_is_the_same_model(folders: list[Path], tmp_path: Path) -> None:
    first = mark_released(folders[0])
    shutil.copytree(folders[0], tmp_path / "copies" / "copy")
    assert mark_released(tmp_path / "copies" / "copy").released == first.released
