"""What an export holds, what it refuses, and that it is there as a whole or not at all."""

import hashlib
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import plumbline as pl
from plumbline.experiments import RunSpec, run
from plumbline.experiments.exporting import LEAVES, Export, NotExported, export
from plumbline.experiments.files import FileError
from plumbline.mechanism.ledger import BudgetExceeded, Ledger
from plumbline.mechanism.rounding import rounded_up
from tests.experiments import small_table
from tests.experiments.exporting.runs import CASES, trained


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def copied(runs: dict[str, Path], tmp_path: Path) -> Callable[[], Path]:
    """A copy of a run's folder, under its own name."""
    run = runs["two classes"]
    return lambda: Path(shutil.copytree(run, tmp_path / run.name))


def test_what_is_in_it(exports: dict[str, Export], runs: dict[str, Path]) -> None:
    for case, found in exports.items():
        there = files_in(found.folder)
        program = {"model.pt2"} if case == "two classes" else set()
        assert there == {
            "README.md", "statement.txt", "model.pt", "model.json", "encoding.json", "predict.py",
            "rows/json_rows.py", "rows/table_cells.py", "rows/table_dates.py", "manifest.json",
        } | program  # fmt: skip
        assert (
            set(found.leaves)
            == {LEAVES and name for name in LEAVES if name != "model.pt2"} | program
        )
        hashes = json.loads((found.folder / "manifest.json").read_bytes())["sha256"]
        assert set(hashes) == there - {"manifest.json"}
        for name, digest in hashes.items():
            assert hashlib.sha256((found.folder / name).read_bytes()).hexdigest() == digest
        result = json.loads((runs[case] / "result.json").read_bytes())
        assert (found.folder / "statement.txt").read_text().strip() == result["statement"].strip()


def test_epsilon_is_rounded_up(exports: dict[str, Export], runs: dict[str, Path]) -> None:
    for case, found in exports.items():
        exact = json.loads((runs[case] / "result.json").read_bytes())["epsilon"]
        told = json.loads((found.folder / "model.json").read_bytes())["epsilon"]
        assert told == found.epsilon == pl.load(found.folder).epsilon == float(rounded_up(exact))
        assert told >= exact
        assert f"epsilon = {rounded_up(exact)}" in pl.load(found.folder).statement()


def test_nothing_of_this_machine_or_of_held_out_rows_is_in_it(
    exports: dict[str, Export], runs: dict[str, Path]
) -> None:
    for case, found in exports.items():
        report = json.loads((runs[case] / "result.json").read_bytes())["report"]
        exact = [v for v in report["overall"].values() if isinstance(v, float) and v not in (0, 1)]
        assert exact
        secrets = [str(runs[case].parents[2]), str(Path.home()), "site-packages", "seed 0"]
        secrets += [text for value in exact for text in (repr(value), f"{value:.4f}")]
        for name in files_in(found.folder):
            content = (found.folder / name).read_bytes()
            if name.endswith((".pt", ".pt2")):
                with zipfile.ZipFile(found.folder / name) as archive:
                    content = b"".join(map(archive.read, archive.namelist()))
            for secret in secrets:
                assert secret.encode() not in content, f"{name} of {case} has {secret}"


def test_metrics_are_there_on_request(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["two classes"]
    found = export(run, tmp_path / "model", with_metrics=True, program=False)
    card = (found.folder / "README.md").read_text()
    overall = json.loads((run / "result.json").read_bytes())["report"]["overall"]
    assert f"{overall['accuracy']:.4f}" in card
    assert "not covered by epsilon" in card
    assert not any("Metrics are left out" in note for note in found.notes)
    assert (found.unsafe, found.asked) == ((), ("metrics of held-out records",))


def test_settings_that_were_tuned_are_said_not_to_be_covered(tmp_path: Path) -> None:
    table = small_table.patients(tmp_path / "patients.csv")
    for origin in ("given", "tuned"):
        row = {"name": "dpsgd", "settings": {"clip": 0.5}, "origin": origin}
        spec = small_table.spec(table, methods=[row])
        run(spec, tmp_path)
        found = export(tmp_path / spec.folder, tmp_path / origin, program=False)
        tuned = origin == "tuned"
        assert found.asked == (("settings that were tuned on these records",) if tuned else ())
        assert ("tuned on the same records" in (found.folder / "README.md").read_text()) == tuned


def test_a_column_whose_name_looks_like_a_path_keeps_it(tmp_path: Path) -> None:
    table = small_table.patients(tmp_path / "patients.csv")
    table.write_text(table.read_text().replace("died", "died y/n", 1))
    made = small_table.recipe(table)
    known = made.data.options
    known |= {
        "target": "died y/n",
        "categories": {"ward": ["east", "west"], "died y/n": ["no", "yes"]},
    }
    spec = RunSpec(made, made.methods[0], 0)
    run(spec, tmp_path)
    card = export(tmp_path / spec.folder, tmp_path / "model", program=False).folder / "README.md"
    assert 'target = "died y/n"' in card.read_text()
    assert str(tmp_path) not in card.read_text()


def test_the_program_is_the_model_for_any_number_of_rows(exports: dict[str, Export]) -> None:
    folder = exports["two classes"].folder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.load(folder / "model.pt2").module()
    loaded = pl.load(folder)
    assert loaded.encoding is not None
    for rows in (0, 1, 5):
        x = torch.rand(rows, len(loaded.encoding.features))
        assert torch.equal(program(x), loaded.model(x))


def test_a_tensor_of_a_larger_storage_leaves_alone(tmp_path: Path) -> None:
    """torch.save writes the whole storage of a tensor that is a part of it."""
    from plumbline.experiments.exporting.contents import weights_of

    whole = torch.full((1000,), 0.123)
    model = torch.nn.Linear(2, 1, bias=False)
    model.weight = torch.nn.Parameter(whole[:2].reshape(1, 2))
    data = weights_of(model)
    path = tmp_path / "model.pt"
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        (stored,) = (name for name in archive.namelist() if "/data/" in name)
        assert len(archive.read(stored)) == 8
    assert torch.equal(torch.load(path, weights_only=True)["weight"], model.weight)


def test_a_network_that_keeps_something_else_is_refused() -> None:
    from plumbline.experiments.exporting.contents import weights_of

    class Keeps(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return {"seen": [1, 2, 3]}

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(NotExported, match=r"_extra_state.*which is no tensor"):
        weights_of(Keeps(2, 2))


# What is refused


def change(name: str, data: bytes | None) -> Callable[[Path], object]:
    def act(run: Path) -> object:
        return (run / name).unlink() if data is None else (run / name).write_bytes(data)

    return act


def append_to_weights(run: Path) -> None:
    """Weights that load, and are others."""
    state = torch.load(run / "model.pt", weights_only=True)
    torch.save({name: value + 1 for name, value in state.items()}, run / "model.pt")


def smaller_epsilon(run: Path) -> None:
    stored = json.loads((run / "result.json").read_bytes())
    (run / "result.json").write_text(json.dumps({**stored, "epsilon": 0.1}))


def other_charges(run: Path) -> None:
    """What the run says of itself is confirmed; but its own ledger has another run's steps."""
    with Ledger.open(run / "ledger") as ledger:
        ledger.charge(ledger.entries()[0][0], run="other", step=0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (other_charges, "is not what it says. Charges: the folder's ledger has 1 more runs"),
        (change("result.json", None), "is not finished. The command that started it goes on"),
        (append_to_weights, "Files: model.pt was changed"),
        (change("encoding.json", b"{}"), "Files: encoding.json was changed"),
        (change("statement.txt", b"epsilon = 0.1"), "Statement: statement.txt is not"),
        (smaller_epsilon, "Epsilon: .* more than the epsilon 0.100"),
        (
            change("ledger", None),
            r"could not be confirmed. Ledger: there is no ledger at .*--ledger",
        ),
        (change("manifest.json", None), "could not be confirmed. Files: no hashes were recorded"),
    ],
)
def test_a_run_that_is_not_confirmed(
    copied: Callable[[], Path], tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    run = copied()
    damage(run)
    with pytest.raises(NotExported, match=message):
        export(run, tmp_path / "model", not_private=True)
    assert os.listdir(tmp_path) == [run.name]


def test_a_ledger_that_lies_elsewhere(copied: Callable[[], Path], tmp_path: Path) -> None:
    run = copied()
    (run / "ledger").rename(tmp_path / "all.ledger")
    found = export(run, tmp_path / "model", program=False, ledger=tmp_path / "all.ledger")
    assert found.epsilon == 8.0


@pytest.mark.parametrize(
    ("options", "message", "headline"),
    [
        (
            {"method": "nonprivate"},
            "It has no guarantee: its epsilon is infinite",
            "**This model has no differential privacy guarantee**",
        ),
        ({"seed": 4}, "Its noise comes from a seed", "**do not publish this model as private**"),
        (
            {"from_data": True, "categories": None, "ranges": None, "records": None},
            "Its encoding was taken from the training rows as they are: the categories of",
            "**This holds for the weights given what was taken from the data",
        ),
    ],
)
def test_a_model_that_is_not_safe_to_ship(
    tmp_path: Path, options: dict[str, Any], message: str, headline: str
) -> None:
    run = trained(tmp_path, **{**CASES["two classes"], **options})
    with pytest.raises(NotExported, match=message) as error:
        export(run, tmp_path / "model")
    assert "--not-private" in str(error.value)
    assert not (tmp_path / "model").exists()
    found = export(run, tmp_path / "model", not_private=True, program=False)
    assert any(message in words for words in found.unsafe)
    card = (found.folder / "README.md").read_text()
    assert headline in card.partition("## How to use it")[0]
    assert "seed4" not in card
    assert "seeds" not in card


def test_a_chosen_threshold_stays_unless_asked_for(tmp_path: Path) -> None:
    run = trained(tmp_path, **{**CASES["two classes"], "threshold": "auto"})
    chosen = pl.load(run).threshold
    assert chosen is not None
    found = export(run, tmp_path / "model", program=False)
    assert pl.load(found.folder).threshold is None
    assert any("--with-threshold" in note for note in found.notes)
    card = (found.folder / "README.md").read_text()
    assert "epsilon does not cover it, and it was left out" in card
    assert "is predicted from a probability" not in card
    for name in ("README.md", "model.json", "encoding.json"):
        assert repr(chosen) not in (found.folder / name).read_text()
    kept = export(run, tmp_path / "kept", program=False, with_threshold=True)
    assert pl.load(kept.folder).threshold == chosen
    assert (found.asked, kept.asked) == ((), ("a chosen threshold",))
    card = (kept.folder / "README.md").read_text()
    assert f"yes is predicted from a probability of {chosen:.3g} (chosen on rows" in card
    assert "Epsilon does not cover that choice." in card


def test_a_given_threshold_is_public(exports: dict[str, Export]) -> None:
    assert pl.load(exports["two classes"].folder).threshold == 0.4


# The folder


def test_a_folder_in_which_something_is(runs: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(NotExported, match="is there already"):
        export(runs["a number"], target)
    assert files_in(tmp_path) == {"model/mine.txt"}
    (target / "mine.txt").unlink()
    assert export(runs["a number"], target, program=False).folder == target  # an empty one will do
    with pytest.raises(NotExported, match="is there already"):
        export(runs["a number"], target)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotExported, match="file is there already"):
        export(runs["a number"], tmp_path / "file")


def test_folders_above_it_are_made(runs: dict[str, Path], tmp_path: Path) -> None:
    found = export(runs["a number"], tmp_path / "a" / "b", program=False)
    assert found.folder == tmp_path / "a" / "b"
    assert os.listdir(tmp_path / "a") == ["b"]


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_disk_that_refuses_leaves_nothing(
    call: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(FileError, match=r"Cannot write .*model: No space left on device"):
        export(runs["a number"], tmp_path / "model", program=False)
    assert os.listdir(tmp_path) == []


def test_somebody_elses_folder_is_not_replaced(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it appears after it was looked for."""
    from plumbline.experiments.exporting import writing

    target, card = tmp_path / "model", writing.model_card

    def late(*args: Any, **options: Any) -> str:
        target.mkdir()
        (target / "mine.txt").write_text("mine")
        return card(*args, **options)

    monkeypatch.setattr(writing, "model_card", late)
    with pytest.raises(FileError, match="Directory not empty"):
        export(runs["a number"], target, program=False)
    assert files_in(tmp_path) == {"model/mine.txt"}


def test_steps_that_were_lost_are_said(tmp_path: Path) -> None:
    """Of eight steps, three are charged ahead and lost with the machine."""

    def stop(step: int, steps: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, **CASES["a number"], on_progress=stop)
    (run,) = (tmp_path / "runs" / "patients").iterdir()
    with pytest.raises(NotExported, match="is not finished"):
        export(run, tmp_path / "model")
    with Ledger.open(run / "ledger") as ledger:
        (name,) = ledger.runs()
        ledger.charge(ledger.entries()[0][0], run=name, step=3, count=3)
    trained(tmp_path, **CASES["a number"], accept_loss=True)
    found = export(run, tmp_path / "model", program=False)
    assert any("The run lost 3 of the 8 steps that were charged" in one for one in found.notes)
    statement = " ".join((found.folder / "statement.txt").read_text().split())
    assert "3 of the 8 planned steps were charged and their results lost" in statement


def test_it_is_marked_as_released_before_it_is_there(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a limit on what is released leaves nothing behind."""
    from plumbline.experiments.exporting import writing

    def refuse(run: Path, *, ledger: Path | None) -> None:
        assert run == runs["a number"]
        assert ledger is None
        assert not (tmp_path / "model").exists()
        raise BudgetExceeded("the limit")

    monkeypatch.setattr(writing, "mark_released", refuse)
    with pytest.raises(BudgetExceeded, match="the limit"):
        export(runs["a number"], tmp_path / "model", program=False)
    assert os.listdir(tmp_path) == []
