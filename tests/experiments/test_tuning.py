"""Equal tuning: the same number of trials, validation part and seeds for every row."""

import json
import math
from pathlib import Path

import pytest
import torch

from plumbline.experiments import Recipe, RunSpec, pool, tune
from plumbline.experiments.loading import load_data
from plumbline.experiments.recipe import MethodPart, TunePart
from plumbline.experiments.tuning import RATE, candidate, score_of, space_of
from plumbline.fairness import GroupReport, Undefined
from tests.experiments.small import fields, recipe

TUNE = {"trials": 3, "seeds": [7], "objective": "accuracy", "learning_rate": [0.01, 1.0]}


def report(**values: float | Undefined) -> GroupReport:
    groups = {name: {"accuracy": value, "loss": value} for name, value in values.items()}
    sizes = {name: 5 if name == "tiny" else 100 for name in values}
    return GroupReport(
        overall={"accuracy": 0.5, "loss": 0.7}, by_group=groups, sizes=sizes, minimum_size=20
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    root = tmp_path_factory.mktemp("tuning")
    return recipe(tune=TUNE), root


def test_every_row_gets_the_same_trials_and_the_best_becomes_a_row(
    tuned: tuple[Recipe, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, root = tuned
    on_progress: list[tuple[int, int]] = []
    found = tune(one, root, workers=1, on_progress=lambda p: on_progress.append((p.done, p.total)))
    assert {title: len(trials) for title, trials in found.trials.items()} == {
        "nonprivate": 3,
        "dpsgd": 3,
        "adapt": 3,
    }
    assert on_progress[-1] == (9, 9)
    assert [done for done, _ in on_progress] == sorted(done for done, _ in on_progress)
    for row in one.methods:
        trials = found.trials[row.title]
        given = row.learning_rate or one.optimizer.learning_rate
        assert (trials[0].learning_rate, trials[0].settings) == (given, row.settings)
        best = max(trials, key=lambda trial: trial.score)
        chosen = next(r for r in found.recipe.methods if r.title == f"{row.title} (tuned)")
        assert (chosen.learning_rate, chosen.settings) == (best.learning_rate, best.settings)
        assert found.sensitivity[row.title].best == best.score
        assert all((root / folder / "result.json").is_file() for folder in best.folders)
    # Started again, nothing is repeated and the same is found.
    monkeypatch.setattr(pool, "_here", lambda runs: pytest.fail("repeated") if runs.specs else None)
    assert tune(one, root, workers=1) == found
    assert Recipe.read(found.write(root)) == found.recipe
    written = json.loads((root / "tuning.json").read_text())
    assert len(written["trials"]) == 9
    assert "epsilon covers each run, not the search" in written["not_covered"]
    assert "| dpsgd |" in str(found)


def test_trials_are_judged_on_records_they_were_not_trained_on() -> None:
    one = recipe(tune=TUNE)
    trial = load_data(RunSpec(one, one.methods[1], 3, held_out=0.25))
    whole = load_data(RunSpec(one, one.methods[1], 3)).train
    deviation = (0.25 * 0.75 * len(whole)) ** 0.5  # each record has a coin of its own
    assert abs(len(trial.test) - 0.25 * len(whole)) < 4 * deviation
    assert len(trial.train) + len(trial.test) == len(whole)
    assert trial.train.origin is not None
    assert trial.test.origin is not None
    places = torch.cat([trial.train.origin[1], trial.test.origin[1]])
    assert torch.equal(places.sort().values, torch.arange(len(whole)))
    other = load_data(RunSpec(one, one.methods[2], 3, held_out=0.25))
    assert torch.equal(other.test.x, trial.test.x)  # the same for every method


def test_a_row_is_searched_where_its_method_says() -> None:
    part = TunePart(learning_rate=(0.01, 1.0), clip=(0.1, 10.0))
    space = space_of(MethodPart(name="global_adapt"), part)
    assert set(space) == {RATE, "initial", "rate"}
    assert set(space_of(MethodPart(name="nonprivate"), part)) == {RATE}
    middle = candidate(
        MethodPart(name="dpsgd"),
        space_of(MethodPart(name="dpsgd"), part),
        {
            RATE: 0.5,
            "clip": 0.5,
        },
    )
    assert middle.learning_rate == 0.1
    assert middle.settings == {"clip": 1.0}


def test_scores() -> None:
    groups = report(a=0.8, b=0.6, tiny=0.1)
    assert score_of(groups, "accuracy") == 0.5
    assert score_of(groups, "worst group accuracy") == 0.6  # a tiny group cannot be judged
    assert score_of(groups, "worst group loss") == 0.8
    assert math.isnan(score_of(report(a=0.5, b=Undefined("no records")), "worst group loss"))


def test_wrong_tuning_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="the smaller one first"):
        Recipe.of(fields(tune={"clip": [2.0, 1.0]}))
