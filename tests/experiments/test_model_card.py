import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import plumbline as pl
from plumbline.experiments import Recipe, RunSpec
from plumbline.experiments.model_card import NoCard, model_card
from plumbline.experiments.verification import verify
from plumbline.mechanism.rounding import rounded_up
from tests.instruments.people import patients


@pytest.fixture(scope="module")
def card(finished: Path) -> str:
    return model_card(verify(finished))


def test_it_has_the_statement_the_groups_and_the_checks(card: str, finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["statement"].strip() in card
    assert f"**epsilon = {rounded_up(result['epsilon'])} at delta = 1e-05**" in card
    assert "do not publish this model as private" in card  # it is seeded
    accuracy = result["report"]["by_group"]["female"]["accuracy"]
    assert f"| female | {result['report']['sizes']['female']:,} | {accuracy:.4f} |" in card
    assert "| ledger | confirmed |" in card
    assert "No file can confirm:" in card


def test_its_front_matter_is_what_the_hub_reads(card: str) -> None:
    yaml = pytest.importorskip("yaml")
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["datasets"] == ["adult"]
    assert "differential-privacy" in head["tags"]
    (entry,) = head["model-index"]
    assert entry["results"][0]["dataset"]["name"] == "adult"
    values = {one["type"]: one["value"] for one in entry["results"][0]["metrics"]}
    assert 0 < values["accuracy"] < 1


def test_its_recipe_makes_the_same_run(card: str, finished: Path) -> None:
    recipe = Recipe.of(tomllib.loads(card.split("```toml\n")[1].split("```")[0]))
    assert RunSpec(recipe, recipe.methods[0], recipe.seeds[0]).folder == finished.name


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"target": "readmitted", "drop": ["stay"]}, "classification"),
        ({"target": "stay", "drop": ["readmitted"]}, "regression"),
    ],
)
def test_the_task_is_called_what_it_is(options: dict[str, Any], kind: str, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    budget = pl.Budget(epsilon=5, delta=1e-4, steps=3, expected_batch_size=60)
    categories = {"readmitted": ["no", "yes"], "ward": ["east", "west"], "sex": ["f", "m"]}
    found = pl.train(
        data=patients(tmp_path / "patients.csv"),
        folder=tmp_path,
        budget=budget,
        sensitive="sex",
        categories={**categories, "code": ["1", "2", "3"]},
        ranges={"age": [18, 90], "stay": [0, 40]} if kind == "regression" else {"age": [18, 90]},
        records=400,
        **options,
    )
    with_all = model_card(verify(found.folder))
    head = yaml.safe_load(with_all.split("---\n")[1])
    (entry,) = head["model-index"][0]["results"]
    assert entry["task"] == {"type": f"tabular-{kind}", "name": kind}
    assert head["pipeline_tag"] == f"tabular-{kind}"
    assert ("rmse" in head["metrics"]) == (kind == "regression")
    assert str(tmp_path) in with_all
    without = model_card(verify(found.folder), metrics=False, use="Use it.")
    head = yaml.safe_load(without.split("---\n")[1])
    assert head["pipeline_tag"] == f"tabular-{kind}"
    assert not {"metrics", "model-index"} & head.keys()
    assert "epsilon does not cover" in without
    assert "## How to use it\n\nUse it." in without
    assert str(tmp_path) not in without
    assert 'path = "patients.csv"' in without
    assert "seed" not in without.replace("seeds of", "")


def test_the_hub_reads_its_metrics(card: str) -> None:
    """By the hub's own library, where it is there."""
    hub = pytest.importorskip("huggingface_hub")
    pytest.importorskip("yaml")
    data = hub.ModelCard(card).data
    assert data.library_name == "plumbline"
    results = {one.metric_type: one for one in data.eval_results}
    assert results["accuracy"].dataset_name == "adult"
    assert 0 < results["accuracy"].metric_value < 1


def test_a_contradicted_run_gets_none(copied: Callable[[], Path]) -> None:
    folder = copied()
    (folder / "statement.txt").write_text("epsilon = 0.01")
    with pytest.raises(NoCard, match="statement is contradicted"):
        model_card(verify(folder))
    (folder / "result.json").unlink()
    with pytest.raises(NoCard, match="not finished"):
        model_card(verify(folder))
