"""``diagnose`` on objects of one's own, and on finished runs."""

from pathlib import Path

import pytest

import plumbline as pl
from plumbline.experiments.recipe import RecipeError
from plumbline.instruments import compare, diagnose, train
from tests.instruments.people import network, tensors

BUDGET = pl.Budget(epsilon=5, delta=1e-4, steps=6, expected_batch_size=60)


def test_a_run_is_made_and_measured(tmp_path: Path) -> None:
    found = diagnose(
        data=tensors(), model=network, method="dpsgd", settings={"clip": 0.01}, budget=BUDGET,
        probed=64, folder=tmp_path, seed=0,
    )  # fmt: skip
    assert [row["step"] for row in found.readings] == [1, 2, 3, 4, 5, 6]
    assert found.readings[-1]["norms"]["clipped"] == 1
    assert found.verdict.cause in ("clipping magnitude", "clipping direction", "noise")
    assert "not covered by epsilon" in str(found)
    assert diagnose(found.folder).readings == found.readings


def test_a_run_without_measurements_has_its_model_measured(tmp_path: Path) -> None:
    run = train(data=tensors(), model=network, method="bam", budget=BUDGET, folder=tmp_path)
    charged = (run.folder / "ledger").read_bytes()
    found = diagnose(run.folder, probed=64)
    assert [row["step"] for row in found.readings] == [6]
    assert found.readings[0]["records"] == 64
    assert (run.folder / "ledger").read_bytes() == charged


def test_one_method_of_a_comparison(tmp_path: Path) -> None:
    made = compare(
        data=tensors(), model=network, methods=["dpsgd", "global_adapt"], budget=BUDGET, seeds=1,
        trials=0, workers=1, folder=tmp_path, name="two",
    )  # fmt: skip
    assert diagnose(made.folder).title == "DP-SGD"
    assert diagnose(made.folder, method="global-adapt").title == "Global-Adapt"
    with pytest.raises(RecipeError, match="has no method 'bam'"):
        diagnose(made.folder, method="bam")
