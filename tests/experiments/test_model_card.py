import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from plumbline.experiments import Recipe, RunSpec
from plumbline.experiments.model_card import NoCard, model_card
from plumbline.experiments.verification import verify
from plumbline.mechanism.rounding import rounded_up


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


def test_a_contradicted_run_gets_none(copied: Callable[[], Path]) -> None:
    folder = copied()
    (folder / "statement.txt").write_text("epsilon = 0.01")
    with pytest.raises(NoCard, match="statement is contradicted"):
        model_card(verify(folder))
    (folder / "result.json").unlink()
    with pytest.raises(NoCard, match="not finished"):
        model_card(verify(folder))
