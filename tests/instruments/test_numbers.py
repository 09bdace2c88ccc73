"""Regression from the file to the page: a numeric target in every instrument."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plumbline as pl
from plumbline import report
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.verification import CONTRADICTED, verify

OPTIONS: dict[str, Any] = {
    "target": "cost",
    "sensitive": "sex",
    "categories": {"sex": ["f", "m"]},
    "ranges": {"age": [20, 90], "stay": [0, 30], "cost": [0, 12000]},
    "records": 1500,
    "epochs": 8,
    "batch": 150,
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    age, stay = rng.integers(20, 90, 1500), rng.uniform(0, 30, 1500).round(1)
    cost = (60 * age + 150 * stay + rng.normal(0, 300, 1500)).clip(0).round(2)
    path = tmp_path / "visits.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "stay", "sex", "cost"])
        writer.writerows(zip(age, stay, rng.choice(["f", "m"], 1500), cost, strict=True))
    return path


@pytest.mark.parametrize("loss", [None, "huber"])
def test_train_predict_verify_and_the_page(table: Path, tmp_path: Path, loss: str | None) -> None:
    more: dict[str, Any] = {} if loss is None else {"loss": loss}
    made = pl.train(data=table, seed=0, epsilon=8.0, folder=tmp_path, **OPTIONS, **more)
    assert made.spec.recipe.loss.name == (loss or "mse")
    overall = made.result.report.overall
    assert overall["r2"] > 0.5
    assert overall["rmse"] < 0.7 * overall["baseline rmse"]
    assert set(made.result.report.by_group) == {"f", "m"}
    found = made.predict(table)
    assert found.shape == (1500,)
    assert 2000 < float(found.mean()) < 9000
    assert not [one for one in verify(made.folder, data=True).checks if one.outcome == CONTRADICTED]
    text = report.write(made.folder).read_text(encoding="utf-8")
    assert "predicts cost with an error (RMSE) of" in text
    assert "where the mean for all has" in text


def test_compare_and_tune_aim_at_the_error(table: Path, tmp_path: Path) -> None:
    found = pl.compare(
        data=table,
        methods=["nonprivate", "dpsgd"],
        objective="rmse",
        trials=1,
        seeds=1,
        workers=1,
        noise="seeded",
        epsilon=[1.0, 8.0],
        folder=tmp_path,
        measure=(),
        **OPTIONS,
    )
    assert found.table.main == "r2"
    head = found.to_markdown().splitlines()[0]
    assert "| R² | RMSE | MAE | loss |" in head
    assert {"rmse", "mae", "r2", "baseline rmse"} <= set(found.to_pandas().columns)
    text = found.page().read_text(encoding="utf-8")
    assert "R² against epsilon" in text
    assert "points of R²" in " ".join(found.verdict)


def test_a_loss_for_classes_is_refused(table: Path) -> None:
    with pytest.raises(
        RecipeError, match="which is for classes, and the target 'cost' is a number"
    ):
        pl.train(data=table, loss="cross_entropy", **OPTIONS)
