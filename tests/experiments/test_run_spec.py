"""What a run is: its folder's name, its budget, its settings read again."""

from pathlib import Path

import pytest

from plumbline.experiments import RunSpec, run
from plumbline.experiments.files import FileError
from plumbline.experiments.linear_baseline import with_simple_row
from plumbline.experiments.run_spec import budget_of, only_study, read_spec, runs_in
from tests.experiments.small import images, spec


def test_other_settings_are_another_folder() -> None:
    folders = {
        spec().folder,
        spec(seed=1).folder,
        spec(method=2).folder,
        spec(optimizer={"learning_rate": 0.2}).folder,
        spec(
            model={"name": "adult-mlp", "options": {}},
            data={"name": "adult", "options": {"balanced": False}},
        ).folder,
    }
    assert len(folders) == 5
    assert spec(name="renamed", seeds=[0, 5]).folder == spec().folder


def test_settings_are_read_again_from_a_folder(tmp_path: Path) -> None:
    one = spec(method=2)
    folder = tmp_path / run(one, tmp_path).folder
    read = read_spec(folder)
    assert (read.facts, read.folder) == (one.facts, one.folder)
    path = folder / "recipe.json"
    path.write_text(path.read_text().replace('"held_out": 0.0', '"held_out": "none"'))
    with pytest.raises(FileError, match="held_out is 'none'"):
        read_spec(folder)


def test_the_only_run_below_a_folder_is_meant(tmp_path: Path) -> None:
    out = tmp_path / "out"
    one, other = (out / "table" / name for name in ("one", "other"))
    one.mkdir(parents=True)
    assert only_study(out) == out  # what is missing is said where it is read
    (one / "recipe.json").write_text("{}")
    for folder in (out, out / "table", one):
        assert only_study(folder) == one
        assert runs_in(folder) == [one]
    other.mkdir()
    (other / "recipe.json").write_text("{}")
    assert runs_in(out / "table") == [one, other]
    with pytest.raises(FileError, match=r"out holds 2 runs; give one of them, such as .*/one"):
        only_study(out)
    (out / "table" / "recipe.json").write_text('{"methods": []}')  # of a comparison
    assert only_study(out) == out / "table"
    assert runs_in(out) == [one, other]


def test_a_row_of_its_own_size_spends_the_recipes_epsilon() -> None:
    one = with_simple_row(images())
    plain, row = one.methods[1], one.methods[-1]
    budget = budget_of(RunSpec(one, row, 0), row.build(), 50_000)
    recipes = one.budget.budget().resolve(50_000)
    assert budget.epsilon == pytest.approx(recipes.epsilon)
    assert (budget.expected_batch_size, budget.epochs) == (4096, 30)
    assert budget_of(RunSpec(one, plain, 0), plain.build(), 50_000) == one.budget.budget()
