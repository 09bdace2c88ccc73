"""Comparisons: the table, processes, and what is not repeated."""

from pathlib import Path

import pytest

from plumbline.experiments import compare, pool, run
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.fairness import compare_to
from plumbline.report.reading import read as read_study
from tests.experiments.small import fields, recipe


def test_the_table_is_made_of_the_runs(tmp_path: Path) -> None:
    one = recipe()
    table = compare(one, tmp_path, workers=1)
    assert [row.title for row in table.rows] == ["nonprivate", "dpsgd", "adapt"]
    runs = {
        method.title: [run(RunSpec(one, method, seed), tmp_path) for seed in one.seeds]
        for method in one.methods
    }
    for row in table.rows:
        accuracies = tuple(result.report.overall["accuracy"] for result in runs[row.title])
        assert row.seeds.overall["accuracy"].per_run == accuracies
        assert row.folders == tuple(result.folder for result in runs[row.title])
        assert all((tmp_path / folder).is_dir() for folder in row.folders)
    assert table.row("nonprivate").cost is None
    cost = table.row("dpsgd").cost
    assert cost is not None
    expected = [
        free.report.value("male", "accuracy") - private.report.value("male", "accuracy")
        for free, private in zip(runs["nonprivate"], runs["dpsgd"], strict=True)
    ]
    assert cost.privacy_cost.by_group["male"].mean == pytest.approx(sum(expected) / 2)
    assert table.tests is not None
    accuracy = {title: [r.report.overall["accuracy"] for r in rs] for title, rs in runs.items()}
    others = {"nonprivate": accuracy["nonprivate"], "adapt": accuracy["adapt"]}
    assert table.tests == compare_to(accuracy["dpsgd"], others, better="higher")
    assert "| dpsgd |" in str(table)


def test_what_is_finished_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = recipe(seeds=[0])
    first = compare(one, tmp_path, workers=1)
    monkeypatch.setattr(pool, "_here", lambda runs: pytest.fail("repeated") if runs.specs else None)
    assert str(compare(one, tmp_path, workers=1)) == str(first)


def test_a_run_that_fails_ends_the_comparison_with_its_error(tmp_path: Path) -> None:
    wrong = recipe(model={"name": "adult-mlp", "options": {"widths": "none"}}, seeds=[0])
    with pytest.raises((TypeError, ValueError)):
        compare(wrong, tmp_path, workers=1)


def test_another_recipe_of_the_same_name_is_refused(tmp_path: Path) -> None:
    one = recipe(seeds=[0])
    first = compare(one, tmp_path, workers=1)
    kept = (tmp_path / "recipe.json").read_bytes()
    other = recipe(
        seeds=[0],
        budget={**fields()["budget"], "expected_batch_size": 999_999},
        averaging=0.9,
    )
    with pytest.raises(RecipeError) as refused:
        compare(other, tmp_path, workers=1)
    words = str(refused.value)
    assert "another recipe called 'small'" in words
    assert "budget.expected_batch_size is 999999 here and 32 there" in words
    assert "averaging is 0.9 here and not given there" in words
    assert "--out" in words
    assert (tmp_path / "recipe.json").read_bytes() == kept
    assert str(compare(one, tmp_path, workers=1)) == str(first)


def test_rows_that_fail_do_not_take_the_place_of_those_that_are_finished(tmp_path: Path) -> None:
    compare(recipe(seeds=[0]), tmp_path, workers=1)
    rows = [{"name": "dpsgd", "expected_batch_size": 999_999}]
    with pytest.raises(ValueError, match="999999"):
        compare(recipe(seeds=[0], methods=rows), tmp_path, workers=1)
    assert len(read_study(tmp_path).recipe.methods) == 3
    more = recipe(seeds=[0], methods=[*fields()["methods"], {"name": "normalised"}])
    assert len(compare(more, tmp_path, workers=1).rows) == 4  # a further row is welcome
    assert len(read_study(tmp_path).recipe.methods) == 4


def test_a_recipe_of_which_nothing_is_finished_may_be_corrected(tmp_path: Path) -> None:
    wrong = recipe(seeds=[0], budget={**fields()["budget"], "expected_batch_size": 999_999})
    with pytest.raises(ValueError, match="999999"):
        compare(wrong, tmp_path, workers=1)
    assert len(compare(recipe(seeds=[0]), tmp_path, workers=1).rows) == 3


def test_tuned_rows_cost_what_they_lose_against_tuned_non_private_runs(tmp_path: Path) -> None:
    one = recipe(
        seeds=[0],
        baseline=None,
        methods=[
            {"name": "nonprivate"},
            {"name": "dpsgd"},
            {"name": "nonprivate", "origin": "tuned", "learning_rate": 0.5},
            {"name": "dpsgd", "origin": "tuned", "learning_rate": 0.5},
        ],
    )
    table = compare(one, tmp_path, workers=1)
    for origin in ("", " (tuned)"):
        free, private = (table.row(f"{name}{origin}") for name in ("nonprivate", "dpsgd"))
        assert private.cost is not None
        lost = free.seeds.by_group["male"]["accuracy"].mean
        lost -= private.seeds.by_group["male"]["accuracy"].mean  # type: ignore[operator]
        assert private.cost.privacy_cost.by_group["male"].mean == pytest.approx(lost)
