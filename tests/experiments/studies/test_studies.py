"""Each study at a size that runs in a second or two, and its settings checked where they enter."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline import data
from plumbline.experiments import papers, recipes
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.studies import (
    STUDIES,
    Job,
    Measured,
    Measurements,
    benchmark,
    symmetry_over_training,
)
from plumbline.experiments.studies.comparison import gap_of
from plumbline.experiments.studies.larger_class import larger_class
from plumbline.experiments.studies.symmetry_over_training import asymmetry
from plumbline.fairness import Estimate, Undefined


def measured(study: str, settings: dict[str, Any], folder: Path) -> Measurements:
    return STUDIES[study](Job(settings, folder, 1))


def test_a_measured_number_has_the_standard_error_of_its_mean() -> None:
    found = Measured.of([1.0, 2.0, 3.0], ["a", "b", "c"])
    assert found.mean == 2
    assert found.standard_error == pytest.approx(1 / math.sqrt(3))
    assert math.isnan(Measured.of([1.0]).standard_error)


@pytest.mark.parametrize(
    ("study", "settings", "says"),
    [
        pytest.param("examples", {"step": 3}, "step", id="unknown field"),
        pytest.param("examples", {"steps": 0}, "steps", id="no steps"),
        pytest.param("two-minima", {}, "distance", id="missing"),
        pytest.param("symmetry", {"recipe": {}, "every": 0}, "every", id="never"),
        pytest.param("symmetry", {"recipe": {}, "every": 1}, "budget", id="no recipe"),
        pytest.param("risk-bounds", {"recipe": {}, "every": 1, "batches": 0}, "batches", id="none"),
        pytest.param("comparison", {"pair": ["a", "b"]}, "budget", id="no budget"),
    ],
)
def test_settings_are_checked(
    study: str, settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=says):
        measured(study, settings, tmp_path)


def test_the_examples_have_a_row_for_each_k(tmp_path: Path) -> None:
    """From the start, 5, on; after no more than 1,500 steps of 0.001 all are still near it."""
    found = measured("examples", {"steps": 1500, "mixture_steps": 5}, tmp_path).paper
    rows = {key.split(", ")[0] for key in found}
    assert rows == {"Example 1", "Example 2", "mixture"}
    assert len(found) == 9
    for key, value in found.items():
        assert key.endswith(" / distance")
        assert value.standard_error > 0
    assert found["Example 1, k = 0 / distance"].mean == pytest.approx(4 - 1500 * 0.001 / 3, abs=0.1)
    assert found["Example 2, k = 0 / distance"].mean == pytest.approx(5 - 1500 * 0.001, abs=0.1)


def test_the_sharp_minimum_is_sharper_and_noise_hurts_more_there(tmp_path: Path) -> None:
    settings = {
        "distance": 1.2,
        "steps": 25,
        "learning_rate": 0.2,
        "noise": 0.1,
        "repetitions": 2,
    }
    found = measured("two-minima", settings, tmp_path).paper
    for metric in ("sharpness", "gradient difference"):
        flat, sharp = (found[f"{name} minimum / {metric}"].mean for name in ("flat", "sharp"))
        assert sharp > 2 * flat > 0
    for name in ("flat", "sharp"):
        assert 0 < found[f"{name} minimum / largest difference over bound"].mean <= 1
        assert -1 <= found[f"{name} minimum / correlation"].mean <= 1


def test_the_benchmarks_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "methods.json"
    monkeypatch.setattr(benchmark, "results", lambda: path)
    settings = {"methods": {"DP-SAM": "dp_sam", "New": "new"}, "models": {"MNIST": "cnn"}}
    with pytest.raises(RecipeError, match=r"python -m benchmarks\.methods"):
        measured("benchmark", settings, tmp_path)
    stored = {"cnn": {"dpsgd": {"memory": 1.0}, "dp_sam": {"ratio": 1.9, "low": 1.8, "high": 2.0}}}
    machine = {"processor": "An Abacus", "threads": 2, "torch": "2.13.0"}
    path.write_text(json.dumps({"machine": machine, "models": stored}))
    result = measured("benchmark", settings, tmp_path)
    found = result.paper
    assert {key: value.mean for key, value in found.items()} == {"DP-SAM / step time / MNIST": 1.9}
    assert "An Abacus" in result.notes[0]


def test_the_benchmark_is_looked_for_beside_the_recipes() -> None:
    assert benchmark.results().parts[-3:] == ("benchmarks", "results", "methods.json")
    assert (benchmark.results().parents[1] / "methods.py").is_file()


def test_always_the_larger_class_is_a_row_of_every_table() -> None:
    """Against counting by hand: accuracies and losses of constant predictions, by group."""
    found = larger_class(Recipe.of({**ADULT, "seeds": [0, 1]}))
    assert set(found) == {
        f"{metric}{group}"
        for metric in ("accuracy", "loss")
        for group in ("", " / male", " / female")
    }
    splits = data.load("adult", split_seed=1)
    poor = float((splits.train.y == 0).double().mean())
    women = splits.test.y[splits.test.sensitive_features == splits.groups.index("female")]
    share = float((women == 0).double().mean())
    assert found["accuracy / female"][1] == pytest.approx(100 * share)
    expected = -share * math.log(poor) - (1 - share) * math.log(1 - poor)
    assert found["loss / female"][1] == pytest.approx(expected)


def test_the_best_row_of_a_sweep_and_the_errors_it_avoids(tmp_path: Path) -> None:
    methods = [{"name": "dpsgd", "label": "plain"}, {"name": "dp_sat", "label": "sharp"}]
    length = {"steps": 2, "expected_batch_size": 64}
    settings = {
        **DIGITS,
        "methods": methods,
        "budget": {"epsilon": 3.0, "delta": 1e-5, **length},
        "epsilons": [1.0],
        "sweep": {"radius": [0.01, 0.5]},
        "reference": "plain",
        "simple_row": False,
    }
    found = measured("comparison", settings, tmp_path).paper
    for place in ("", ", epsilon 1"):
        rows = {key: found[f"sharp, radius {key}{place} / accuracy"] for key in ("0.01", "0.5")}
        best = found[f"sharp, best{place} / accuracy"]
        assert best.mean == max(row.mean for row in rows.values())
        plain = found[f"plain, best{place} / accuracy"]
        assert plain == found[f"plain{place} / accuracy"]
        fewer = found[f"sharp, best{place} / error reduction"]
        for seed, value in fewer.by_seed.items():
            wrong = [100 - one.by_seed[seed] for one in (plain, best)]
            assert value == pytest.approx(100 * (wrong[0] - wrong[1]) / wrong[0])
    assert not any(key.startswith("plain, best / error") for key in found)


def test_the_first_and_the_last_reading_of_a_probe(tmp_path: Path) -> None:
    """Against the rows of the run's own file."""
    settings = {
        **DIGITS,
        "methods": [{"name": "dpsgd", "label": "plain"}],
        "budget": {"epsilon": 3.0, "delta": 1e-5, "steps": 3, "expected_batch_size": 64},
        "probe": {"every": 1, "records": 16, "measure": ["progress"]},
        "simple_row": False,
    }
    found = measured("comparison", settings, tmp_path).paper
    for seed, value in found["plain / progress / loss"].by_seed.items():
        (path,) = tmp_path.glob(f"plain-seed{seed}-*/diagnostics.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        losses = [one["progress"]["loss"] for one in lines if "progress" in one]
        assert len(losses) == 3
        assert value == pytest.approx(sum(losses) / 3)
        for end, loss in (("first", losses[0]), ("last", losses[-1])):
            assert found[f"plain / progress / loss, {end}"].by_seed[seed] == loss


def test_a_gap_has_the_sign_of_its_mean() -> None:
    signed = gap_of(Estimate(0.0, 0.0, (1.0, 2.0)), Estimate(0.0, 0.0, (2.0, 5.0)))
    assert signed == [1.0, 3.0]
    one = Undefined("none")
    assert gap_of(Estimate(0.0, 0.0, (1.0, one)), Estimate(0.0, 0.0, (2.0, 5.0))) == [1.0, one]


def test_asymmetry_of_a_sample() -> None:
    generator = torch.Generator().manual_seed(0)
    even = torch.randn(2000, generator=generator)
    skewed = torch.randn(2000, generator=generator).exp()
    assert asymmetry(torch.cat([even, -even]) + 3) < 1e-3
    assert asymmetry(even) < 3 / math.sqrt(2000)
    assert asymmetry(skewed) > 0.3
    assert asymmetry(5 * skewed - 1) == pytest.approx(asymmetry(skewed), rel=1e-4)
    assert asymmetry(torch.ones(5)) == 0


DIGITS: dict[str, Any] = {
    "name": "small",
    "seeds": [0, 1],
    "data": {"name": "digits"},
    "model": {"name": "fair-cnn-mnist", "options": {"size": 8}},
    "budget": {
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "epochs": 2,
        "expected_batch_size": 256,
        "accountant": "rdp",
    },
    "optimizer": {"learning_rate": 0.1},
    "methods": [{"name": "dpsgd"}],
}


def test_symmetry_is_looked_at_before_and_at_the_end_of_epochs(tmp_path: Path) -> None:
    settings = {"recipe": DIGITS, "every": 1, "records": 32}
    found = measured("symmetry", settings, tmp_path).paper
    assert {key.split(" / ")[0] for key in found} == {"epoch 0", "epoch 1", "epoch 2"}
    for epoch in range(3):
        asymmetric = found[f"epoch {epoch} / asymmetry"]
        assert 0 < asymmetric.mean <= found[f"epoch {epoch} / asymmetry of the worst plane"].mean
        assert asymmetric.standard_error > 0
        assert 0 <= found[f"epoch {epoch} / share of negative cosines"].mean <= 1
        assert 0 <= found[f"epoch {epoch} / Wasserstein distance over |g| c"].mean <= 1
    for seed in (0, 1):
        lines = (tmp_path / f"seed{seed}" / "diagnostics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        # ceil(1438 / 256) steps to an epoch.
        assert [row["step"] for row in rows if "step" in row] == [0, 6, 12]
    assert measured("symmetry", settings, tmp_path).paper == found


def test_a_seed_that_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its settings have changed; other seeds may join."""
    trained: list[int] = []

    def fake(recipe: Recipe, part: Any, seed: int, folder: Path) -> dict[str, float]:
        trained.append(seed)
        return {"epoch 0 / asymmetry": seed + part.every}

    monkeypatch.setattr(symmetry_over_training, "_trained", fake)

    def found(seeds: list[int], every: int = 1) -> Measured:
        settings = {"recipe": {**DIGITS, "seeds": seeds}, "every": every}
        return measured("symmetry", settings, tmp_path).paper["epoch 0 / asymmetry"]

    assert found([0]).by_seed == {"0": 1.0}
    assert found([0, 2]).by_seed == {"0": 1.0, "2": 3.0}
    assert found([2]).folders == ("seed2",)
    assert trained == [0, 2]
    assert found([2], every=5).by_seed == {"2": 7.0}
    assert trained == [0, 2, 2]
    assert (tmp_path / "seed0" / "versions.json").is_file()


ADULT = {
    "name": "small",
    "seeds": [0],
    "data": {"name": "adult"},
    "model": {"name": "adult-mlp", "options": {"hidden": 4}},
    "budget": {
        "noise_multiplier": 1.0,
        "delta": 1e-6,
        "steps": 4,
        "expected_batch_size": 256,
        "accountant": "rdp",
    },
    "optimizer": {"learning_rate": 0.01},
    "methods": [{"name": "dpsgd", "settings": {"clip": 0.5}}],
}


def test_bounds_on_the_gap_in_excessive_risk(tmp_path: Path) -> None:
    settings = {"recipe": ADULT, "every": 2, "batches": 2, "lanczos": 4}
    found = measured("risk-bounds", settings, tmp_path).paper
    lines = (tmp_path / "seed0" / "bounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [2, 4]
    for row in rows:
        # Prop. 3 for a small step: the terms in the learning rate squared do not matter.
        assert row["direction_bound"] <= row["direction_gap"] + 1e-6
        assert row["direction_bound_simple"] <= row["direction_bound"]
        assert 0 < row["stability"] < 1
    assert found["DPSGD / R_dir gap"].mean == pytest.approx(
        sum(row["direction_gap"] for row in rows) / 2
    )
    assert found["DPSGD / smallest R_dir gap less bound of Prop. 3"].mean == min(
        row["direction_gap"] - row["direction_bound"] for row in rows
    )


def test_bounds_need_two_groups_and_a_reading(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="two groups"):
        measured("risk-bounds", {"recipe": DIGITS, "every": 2}, tmp_path)
    with pytest.raises(RecipeError, match="no reading"):
        measured("risk-bounds", {"recipe": ADULT, "every": 9}, tmp_path)


@pytest.mark.parametrize(
    ("name", "study", "settings"),
    [
        pytest.param("001-examples", "examples", {"steps": 1, "mixture_steps": 1}, id="examples"),
        pytest.param(
            "002-figure-4",
            "two-minima",
            {"distance": 1, "steps": 3, "learning_rate": 0.1, "noise": 0.1, "repetitions": 1},
            id="two minima",
        ),
        pytest.param(
            "004-figure-5",
            "risk-bounds",
            {"recipe": ADULT, "every": 4, "batches": 1, "lanczos": 2},
            id="bounds",
        ),
        *(
            pytest.param(
                f"001-symmetry-{data}",
                "symmetry",
                {
                    "recipe": {
                        **DIGITS,
                        "seeds": [0],
                        "budget": {**DIGITS["budget"], "epochs": 3, "expected_batch_size": 1000},
                    },
                    "every": 3,
                    "records": 16,
                },
                id=f"symmetry on {data}",
            )
            for data in ("mnist", "cifar10")
        ),
    ],
)
def test_shipped_claims_are_about_what_a_study_measures(
    name: str, study: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    root = recipes.folder() / "papers"
    plan = tomllib.loads((root / f"{name}.toml").read_text("utf-8"))
    assert plan["study"] == study
    fields = tomllib.loads((root / f"{name}.published.toml").read_text("utf-8"))
    published = papers.PublishedFile.model_validate(fields)
    keys = {key for claim in published.claims for key in claim.keys}
    keys |= {f"{row.row} / {metric}" for row in published.rows for metric in row.values}
    assert keys <= set(measured(study, settings, tmp_path).paper)
    if study == "symmetry":
        quick = papers.ReproductionFile.model_validate(plan).at("quick")
        assert 3 % quick["every"] == 0
        assert quick["recipe"]["budget"]["epochs"] >= 3
