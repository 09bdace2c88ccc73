"""Thresholds, given and chosen, and public weights of classes: on rare positives, and on Dutch."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import plumbline as pl
from plumbline.data import Split, Splits
from plumbline.experiments import RunSpec
from plumbline.experiments.deciding import check_decision, choose_threshold, record_weights
from plumbline.experiments.loading import load_data
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.selecting import check_selectable
from plumbline.experiments.verification import CONFIRMED, verify
from tests.experiments.small import recipe

RARE: dict[str, Any] = {
    "target": "ill",
    "sensitive": "sex",
    "categories": {"ill": ["no", "yes"], "sex": ["f", "m"]},
    "ranges": {"age": [20, 90], "dose": [0, 10]},
    "records": 6000,
    "epochs": 10,
    "batch": 600,
    "learning_rate": 0.02,
}


def rare(path: Path) -> Path:
    """6,000 rows, of which 5 in 100 are ill, and more of the old: no seed's noise decides."""
    rng = np.random.default_rng(3)
    age, dose = rng.integers(20, 90, 6000), rng.uniform(0, 10, 6000)
    chance = 1 / (1 + np.exp(8 - age / 15 - dose / 8))
    sex, ill = rng.choice(["f", "m"], 6000), rng.random(6000) < chance
    rows = zip(age, dose.round(2), sex, np.where(ill, "yes", "no"), strict=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "dose", "sex", "ill"])
        writer.writerows(rows)
    return path


def test_rare_positives_with_and_without_a_threshold(tmp_path: Path) -> None:
    table = rare(tmp_path / "rare.csv")
    plain = pl.train(data=table, seed=2, folder=tmp_path / "plain", **RARE)
    overall = plain.result.report.overall
    assert overall["most predicted"] == 1.0
    assert overall["accuracy"] == overall["baseline accuracy"]
    assert overall["balanced accuracy"] == 0.5
    chosen = pl.train(data=table, seed=2, threshold="auto", folder=tmp_path / "auto", **RARE)
    found = chosen.result.report.overall
    assert chosen.result.threshold is not None
    assert 0 < chosen.result.threshold < 0.5
    assert found["balanced accuracy"] > 0.6
    assert "the threshold, which was chosen on rows" in " ".join(chosen.statement().split())
    stored = json.loads((chosen.folder / "result.json").read_text())
    assert stored["threshold"] == chosen.result.threshold
    assert stored["classes"] == ["no", "yes"]
    assert pl.load(chosen.folder).result == chosen.result
    # The rows it was chosen on are neither trained on nor reported on.
    splits = load_data(chosen.spec)
    whole = load_data(plain.spec)
    assert splits.third is not None
    assert len(splits.train) + len(splits.third) == len(whole.train)
    assert torch.equal(splits.test.x, whole.test.x)
    assert splits.train.public_records == chosen.spec.public_records == round(4800 * 0.8)
    # And verify judges with it too.
    checks = {one.what: one.outcome for one in verify(chosen.folder, data=True).checks}
    assert checks["metrics"] == checks["data"] == CONFIRMED


def test_the_threshold_of_best_balanced_accuracy() -> None:
    class Logits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.zeros_like(x), x], 1)

    x = torch.tensor([-4.0, -3, -2, -1.5, -1, 0])[:, None]
    y = torch.tensor([0, 0, 1, 0, 1, 1])
    found = choose_threshold(Logits(), Split(x, y))
    scores = torch.sigmoid(x.double())[:, 0]
    best = max(
        ((scores >= t).eq(y == 1)[y == 1].double().mean() + (scores < t)[y == 0].double().mean())
        for t in scores
    )
    own = (scores >= found)[y == 1].double().mean() + (scores < found)[y == 0].double().mean()
    assert own == best
    assert all(abs(float(one) - found) > 1e-3 for one in scores)
    assert choose_threshold(Logits(), Split(x, torch.zeros(6, dtype=torch.long))) == 0.5


def splits(classes: tuple[str, ...] = ("no", "yes")) -> Splits:
    part = Split(torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]))
    return Splits("small", part, part, classes)


def test_weights_are_scaled_to_at_most_one() -> None:
    found = record_weights(recipe(class_weights={"yes": 5.0}), splits())
    assert found is not None
    assert found.tolist() == [0.2, 1.0, 1.0, 0.2]
    assert record_weights(recipe(), splits()) is None


@pytest.mark.parametrize(
    ("given", "classes", "words"),
    [
        ({"threshold": 0.3}, ("a", "b", "c"), "decides between two classes; the data have 3"),
        ({"threshold": "auto"}, (), "a number as its target"),
        ({"class_weights": {"yess": 1.0}}, ("no", "yes"), "Did you mean 'yes'"),
        ({"class_weights": {"yes": 1.0}}, (), "the target is a number"),
    ],
)
def test_what_does_not_fit_the_classes_is_refused(
    given: dict[str, Any], classes: tuple[str, ...], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        check_decision(recipe(**given), classes)


def test_classes_that_were_taken_from_the_rows_are_not_named() -> None:
    given = {"name": "table", "options": {"path": "my.csv", "target": "ill", "from_data": True}}
    taken = recipe(data=given, class_weights={"yes": 2.0})
    with pytest.raises(RecipeError, match="no class called 'yes' in the training rows") as refused:
        check_decision(taken, ("SECRET", "yesterday"))
    assert "SECRET" not in str(refused.value)
    assert "yesterday" not in str(refused.value)


@pytest.mark.parametrize(
    "given", [{"threshold": 0.0}, {"threshold": "often"}, {"class_weights": {"a": -1.0}}]
)
def test_a_recipe_refuses_other_values(given: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        recipe(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"threshold": "auto"}, "A threshold that is chosen is not covered"),
        (
            {
                "data": {"table": "my.csv", "target": "cost", "ranges": {"cost": [0, 1]}},
                "loss": {"name": "mse"},
            },
            "the target is a number",
        ),
    ],
)
def test_what_cannot_be_selected_privately_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        check_selectable(recipe(**given))


def test_what_is_left_out_moves_no_folder() -> None:
    one = recipe()
    assert "threshold" not in RunSpec(one, one.methods[0], 0).facts
    other = recipe(threshold=0.3)
    assert RunSpec(one, one.methods[0], 0).folder != RunSpec(other, other.methods[0], 0).folder


def test_dutch_is_judged_by_more_than_accuracy(tmp_path: Path, data_folder: Path) -> None:
    made = pl.train(
        data="dutch",
        model="linear",
        method="dpsgd",
        epsilon=1.0,
        epochs=1,
        batch=2000,
        learning_rate=0.05,
        seed=0,
        class_weights={"prestigious occupation": 1.0, "other occupation": 0.5},
        folder=tmp_path,
    )
    overall = made.result.report.overall
    assert overall["accuracy"] > overall["baseline accuracy"] + 0.15
    assert overall["auc"] > 0.85
    assert overall["average precision"] > 0.8
    assert set(made.result.report.reliability_by_group) == {"male", "female"}
    assert "record_weights" in " ".join(made.statement().split())


def test_the_recipe_says_the_same() -> None:
    fields = recipe(threshold="auto", class_weights={"yes": 2.0}).model_dump(mode="json")
    assert Recipe.of(fields).threshold == "auto"
