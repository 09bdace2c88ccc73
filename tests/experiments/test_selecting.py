"""Private selection: only the winner is shown, and epsilon covers the choice."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plumbline import models
from plumbline.experiments import RecipeError, RunSpec, run, select, selecting
from plumbline.experiments.loading import load_data
from plumbline.experiments.private_score import PrivateScore
from plumbline.experiments.recipe import Recipe
from plumbline.experiments.run_result import RunResult, read_result
from plumbline.fairness import Outcomes
from plumbline.mechanism.accountant import Releases
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.random_source import SeededSource
from plumbline.mechanism.release import FullBatch, GaussianQuery, StepRelease
from plumbline.mechanism.rounding import rounded_up
from plumbline.mechanism.selection import RandomCount
from tests.experiments.small import fields, spec

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "steps": 5, "expected_batch_size": 64}


@pytest.fixture
def small() -> Recipe:
    return Recipe.of(fields(budget=BUDGET, tune={"validation": 0.1}))


def test_the_winner_is_kept_and_nothing_else(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))  # not among them
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "secret"))
    (tmp_path / "secret").mkdir()
    found = select(small, "dpsgd", tmp_path / "winner", epsilon=4.0, mean=2.0, seed=1)
    assert 3.9 < found.result.epsilon <= 4.0
    assert not list((tmp_path / "secret").iterdir())  # what the losers did is gone
    (folder,) = (tmp_path / "winner").iterdir()
    kept = {path.name for path in folder.iterdir()}
    assert kept == {"model.pt", "recipe.json", "result.json", "statement.txt"}
    model = models.build("adult-mlp", hidden=8)
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    assert read_result(folder) == found.result
    assert found.result.settings == found.row.settings
    text = " ".join(found.result.statement.split())
    assert text.startswith(
        f"Epsilon {rounded_up(found.result.epsilon, 4)} at delta 1e-05 for one record"
    )
    assert "covers the training of every candidate, their scores, and the choice" in text
    assert "the number itself is not disclosed" in text
    assert "knows the noise" in text


def test_the_same_seed_chooses_the_same(small: Recipe, tmp_path: Path) -> None:
    first, second = (
        select(small, "dpsgd", tmp_path / name, epsilon=4.0, mean=1.5, seed=3) for name in "ab"
    )
    assert first.row == second.row
    assert first.score == second.score


def test_secure_selection_has_no_seed(small: Recipe, tmp_path: Path) -> None:
    found = select(small, "dpsgd", tmp_path, epsilon=4.0, mean=1.2)
    assert "seed" not in found.result.statement
    assert 0 <= found.result.report.overall["accuracy"] <= 1  # type: ignore[operator]


def test_what_cannot_be_selected_is_refused(small: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nonprivate has no guarantee"):
        select(small, "nonprivate", tmp_path, epsilon=4.0)
    with pytest.raises(RecipeError, match="no row 'bam'"):
        select(small, "bam", tmp_path, epsilon=4.0)


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[Releases]:
    """What each candidate's ledger says."""
    found: list[Releases] = []

    def watched(tried: RunSpec, root: str | os.PathLike[str], *, shared: bool) -> RunResult:
        result = run(tried, root, shared=shared)
        entries = Ledger.read(Path(root) / tried.folder / "ledger").entries()
        found.append([(StepRelease.from_dict(release), times) for release, times in entries])
        return result

    monkeypatch.setattr(selecting, "run", watched)
    return found


def with_row(**own: object) -> Recipe:
    row = {"name": "dpsgd", "settings": {"clip": 0.5}, **own}
    budget = {**BUDGET, "steps": 20, "expected_batch_size": 16_000, "accountant": "rdp"}
    changes = {"data": {"name": "adult"}, "tune": {"validation": 0.2}}
    return Recipe.of(fields(budget=budget, methods=[row], **changes))


@pytest.mark.parametrize(
    ("own", "steps"),
    [
        ({}, 20),
        ({"expected_batch_size": 16, "epochs": 0.02}, 24),
        pytest.param({"expected_batch_size": 64}, 20, marks=pytest.mark.slow),
        pytest.param({"epochs": 2.0}, 3, marks=pytest.mark.slow),
    ],
    ids=["the recipe's sizes", "its own", "its own batch", "its own epochs"],
)
def test_what_is_stated_is_what_the_candidates_released(
    own: dict[str, object], steps: int, tmp_path: Path, ledgers: list[Releases]
) -> None:
    one = with_row(**own)
    found = select(one, "dpsgd", tmp_path, epsilon=1.0, mean=2.0, seed=2)
    whole = len(load_data(RunSpec(one, one.methods[0], 0)).train)
    query = GaussianQuery(
        name="score", sensitivity=1.0, noise_multiplier=0.005 * round(0.2 * whole)
    )
    score = StepRelease(sampling=FullBatch(), queries=(query,))
    assert len(ledgers) >= 1
    for released in ledgers:
        spent = RandomCount(2.0).epsilon([*released, (score, 1)], delta=1e-5)
        assert spent == pytest.approx(found.result.epsilon, rel=1e-9)
        assert sum(times for _, times in released) == pytest.approx(steps, abs=1)
        ((release, times),) = released
        text = " ".join(found.result.statement.split())
        assert f"{times} steps at sampling rate {release.sampling.rate:.4g}" in text
        assert f"noise multiplier {release.noise_multiplier:.4g}" in text
    assert (found.row.expected_batch_size, found.row.epochs) == (
        own.get("expected_batch_size"),
        own.get("epochs"),
    )


def test_a_candidate_that_releases_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selecting, "_NO_SIZES", {})  # its noise is then calibrated again
    one = with_row(expected_batch_size=16, epochs=0.05)
    with pytest.raises(RuntimeError, match="Nothing is shown"):
        select(one, "dpsgd", tmp_path / "winner", epsilon=1.0, mean=1.2, seed=1)
    assert not (tmp_path / "winner").exists()


def test_equal_candidates_are_trained_each_on_its_own(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledgers: list[Releases]
) -> None:
    monkeypatch.setattr(selecting, "candidate", lambda row, *_: row)
    monkeypatch.setattr(RandomCount, "draw", lambda *_: 3)
    scores = iter([0.5, 0.4, 0.6])
    monkeypatch.setattr(PrivateScore, "value", lambda *_: next(scores))
    found = select(small, "dpsgd", tmp_path, epsilon=4.0)
    assert found.score == 0.6
    assert [sum(times for _, times in one) for one in ledgers] == [5, 5, 5]


def test_how_long_it_took_does_not_tell_how_many_candidates_there_were(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(one: RunSpec, home: Path, *, shared: bool) -> RunResult:
        return replace(run(one, home, shared=shared), seconds=7.0)

    monkeypatch.setattr(selecting, "run", timed)
    monkeypatch.setattr(RandomCount, "draw", lambda *_: 3)
    assert select(small, "dpsgd", tmp_path, epsilon=4.0).result.seconds == 7.0


def test_a_record_moves_the_score_by_one_right_prediction() -> None:
    """Whatever the number of records held out: neither noise nor denominator depends on it."""
    scored = PrivateScore("accuracy", classes=2)

    def score(right: int, records: int) -> float:
        wrong = [0] * right + [1] * (records - right)
        sums = scored.sums(Outcomes([0] * records, wrong))
        noisy = selecting._noisy(sums, 5.0, SeededSource(1, "score"), 0)
        return scored.value(noisy, 1000)

    first, second = score(700, 990), score(701, 991)
    assert second - first == pytest.approx(1 / 1000)
    assert abs(first - 0.7) < 0.03


@pytest.mark.parametrize("metric", ["balanced accuracy", "macro f1", "loss"])
def test_the_metric_of_the_run_is_what_candidates_are_scored_by(
    tmp_path: Path, metric: str
) -> None:
    recipe = Recipe.of(fields(budget=BUDGET, tune={"validation": 0.1, "objective": metric}))
    found = select(recipe, "dpsgd", tmp_path, epsilon=4.0, mean=1.5, seed=3)
    assert f"scored by its {metric}, from " in " ".join(found.result.statement.split())
    value = found.result.report.overall[metric]
    assert isinstance(value, float)
    # On other records, and with noise.
    assert abs(found.score) == pytest.approx(value, abs=0.15)


@pytest.mark.parametrize("metric", ["auc", "average precision", "worst group accuracy"])
def test_a_metric_that_one_record_moves_far_is_refused(tmp_path: Path, metric: str) -> None:
    recipe = Recipe.of(fields(budget=BUDGET, tune={"objective": metric}))
    with pytest.raises(RecipeError, match=f"cannot aim at {metric}.*balanced accuracy"):
        select(recipe, "dpsgd", tmp_path / "out", epsilon=4.0)
    assert not (tmp_path / "out").exists()


def test_the_statement_says_what_is_public_and_what_was_looked_at(
    small: Recipe, tmp_path: Path
) -> None:
    text = " ".join(
        select(small, "dpsgd", tmp_path, epsilon=4.0, mean=1.2).result.statement.split()
    )
    splits = load_data(replace(spec(), held_out=0.1))
    assert f"trained on, {len(splits.train):,}, and held out, {len(splits.test):,}" in text
    assert all(one in text for one in splits.not_covered)
