"""Reading a folder: what counts, what is left out, and what is said about it."""

import json
from pathlib import Path

import pytest

from plumbline.experiments import Recipe, RunSpec
from plumbline.experiments.files import FileError
from plumbline.report import read
from tests.report.made import METHODS, comparison


def run_folder(root: Path, title: str, seed: int) -> Path:
    recipe = Recipe.of(json.loads((root / "recipe.json").read_text()))
    method = next(one for one in recipe.methods if one.title == title)
    return root / RunSpec(recipe, method, seed).folder


def test_a_comparison_has_every_run_and_what_it_recorded(tmp_path: Path) -> None:
    study = read(comparison(tmp_path / "c"))
    assert study.titles == ["nonprivate", "dpsgd", "adapt"]
    assert study.private == ["dpsgd", "adapt"]
    assert study.groups == ["male", "female"]
    assert [len(runs) for runs in study.runs.values()] == [2, 2, 2]
    assert [row["step"] for row in study.runs["dpsgd"][0].readings] == [5, 10]
    assert not study.single
    assert study.left_out == ()


def test_a_run_is_a_comparison_of_one(tmp_path: Path) -> None:
    root = comparison(tmp_path / "c")
    study = read(run_folder(root, "adapt", 1))
    assert study.single
    assert study.titles == ["adapt"]
    assert study.recipe.seeds == (1,)
    assert study.spec("adapt").optimizer.learning_rate == 0.2


def test_only_seeds_that_every_method_has_finished_count(tmp_path: Path) -> None:
    root = comparison(tmp_path / "c")
    (run_folder(root, "adapt", 1) / "result.json").unlink()
    study = read(root)
    assert study.recipe.seeds == (0,)
    assert study.left_out == ("seeds that not every method has finished: 1",)


def test_a_method_without_a_finished_run_is_left_out(tmp_path: Path) -> None:
    root = comparison(tmp_path / "c")
    for seed in (0, 1):
        (run_folder(root, "dpsgd", seed) / "result.json").unlink()
    study = read(root)
    assert study.titles == ["nonprivate", "adapt"]
    assert study.recipe.baseline is None
    assert study.left_out == ("dpsgd has no finished run yet",)


def test_rows_of_one_method_stand_beside_each_other(tmp_path: Path) -> None:
    rows = [
        {"name": "dpsgd", "origin": "paper"},
        {"name": "bam", "origin": "paper"},
        {"name": "dpsgd", "origin": "tuned", "learning_rate": 0.9},
    ]
    study = read(comparison(tmp_path / "c", methods=rows, baseline=None))
    assert study.titles == ["dpsgd (paper)", "dpsgd (tuned)", "bam (paper)"]


def test_a_folder_with_nothing_to_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no recipe"):
        read(tmp_path)
    root = comparison(tmp_path / "c", methods=METHODS[:1], seeds=(0, 1), baseline=None)
    (root / "recipe.json").unlink()
    with pytest.raises(FileError, match="holds 2 runs; give one of them"):
        read(root)


def test_a_comparison_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    root = comparison(tmp_path / "c", methods=METHODS[:1], seeds=(0,), baseline=None)
    (run_folder(root, "nonprivate", 0) / "result.json").unlink()
    with pytest.raises(ValueError, match="no finished run"):
        read(root)


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    folder = run_folder(comparison(tmp_path / "c"), "dpsgd", 0)
    (folder / "result.json").unlink()
    with pytest.raises(ValueError, match="not finished"):
        read(folder)
