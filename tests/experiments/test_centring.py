"""A mean that is asked for before the first step: subtracted, paid for, verified, resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from plumbline.experiments import RunSpec, run
from plumbline.experiments import running as running_module
from plumbline.experiments.centring import centre_of
from plumbline.experiments.files import MODEL
from plumbline.experiments.loading import load_data
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.running import started
from plumbline.experiments.selecting import select
from plumbline.experiments.verification.checks import CONFIRMED, CONTRADICTED
from plumbline.experiments.verification.verifying import verify
from plumbline.mechanism import accountant
from plumbline.mechanism.ledger import Ledger
from plumbline.models import MODELS
from plumbline.models.scattering_heads import Centre
from plumbline.training import keeping
from plumbline.training.moments import mean_release
from tests.experiments.small import recipe, spec

FEATURES = 98  # of Adult
NAME = "small-centred"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network on bundled data that can subtract a mean."""

    def build(*, centred: bool = False) -> nn.Module:
        return nn.Sequential(*([Centre(FEATURES)] if centred else []), nn.Linear(FEATURES, 2))

    monkeypatch.setitem(MODELS._parts, NAME, build)


def centred(noise: float = 2.0, **changes: Any) -> RunSpec:
    return spec(model={"name": NAME, "centre": noise}, **changes)


def test_the_model_subtracts_the_mean_of_the_training_records() -> None:
    one = centred(noise=1e-9)
    splits = load_data(one)
    private = started(one, splits)
    rows = splits.train.fetch(torch.arange(len(splits.train)))[0].double()
    scaled = rows * (FEATURES**0.5 / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    mean = centre_of(private.model).mean.double()
    torch.testing.assert_close(mean, scaled.mean(0), rtol=1e-5, atol=1e-6)
    private.close()


def test_a_hidden_number_of_records_is_not_divided_by() -> None:
    """Where another one is public, it is known and the exact one is not."""
    one = centred(noise=1e-9)
    splits = load_data(one)
    exact = centre_of(started(one, splits).model).mean.clone()
    splits.train.public_records = 2 * len(splits.train)
    halved = centre_of(started(one, splits).model).mean
    torch.testing.assert_close(2 * halved, exact, rtol=1e-5, atol=1e-6)


def test_epsilon_the_ledger_and_the_statement_count_it(tmp_path: Path) -> None:
    one = centred()
    result = run(one, tmp_path)
    release = mean_release(2.0, seeded=True)
    book = Ledger.read(tmp_path / one.folder / "ledger")
    assert (release.to_dict(), 1) in book.entries()
    assert result.epsilon == book.epsilon(1e-5)
    assert result.epsilon > run(spec(model={"name": NAME}), tmp_path).epsilon
    assert result.epsilon > accountant.epsilon([(release, 1)], delta=1e-5)
    assert "the mean of the features (noise from a seed)" in " ".join(result.statement.split())
    stored = torch.load(tmp_path / one.folder / MODEL, weights_only=True)
    assert stored["0.mean"].any()


def test_a_budget_pays_for_it() -> None:
    part = {"epsilon": 2.0, "delta": 1e-5, "steps": 10, "expected_batch_size": 32}
    plain, dear = spec(model={"name": NAME}, budget=part), centred(budget=part)
    splits = load_data(plain)
    noise = [started(one, splits).plan.noise_multiplier for one in (plain, dear)]
    assert noise[1] > noise[0]


def test_a_run_is_verified(tmp_path: Path) -> None:
    one = centred(budget={"epsilon": 2.0, "delta": 1e-5, "steps": 6, "expected_batch_size": 32})
    run(one, tmp_path)
    report = verify(tmp_path / one.folder, data=True)
    outcomes = {check.what: check.outcome for check in report.checks}
    assert set(outcomes.values()) == {CONFIRMED}, report.checks
    assert any("what was asked before them" in check.words for check in report.checks)


def test_another_question_contradicts(tmp_path: Path) -> None:
    one = centred()
    run(one, tmp_path)
    path = tmp_path / one.folder / "recipe.json"
    path.write_text(path.read_text().replace('"centre": 2.0', '"centre": 3.0'))
    report = verify(tmp_path / one.folder)
    assert CONTRADICTED in {check.outcome for check in report.checks if check.what == "charges"}


def test_a_run_that_goes_on_does_not_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = centred()
    whole = run(one, tmp_path / "whole")

    class Stopped(Exception):
        pass

    def stop(step: int, _steps: int) -> None:
        if step == 5:
            raise Stopped

    monkeypatch.setattr(keeping, "_SECONDS", 0.0)
    monkeypatch.setattr(keeping, "_SHARE", 0)
    with pytest.raises(Stopped):
        run(one, tmp_path / "stopped", stop)
    monkeypatch.setattr(running_module, "centre", None)  # who asks now fails
    again = run(one, tmp_path / "stopped")
    assert again.report == whole.report
    assert again.epsilon == whole.epsilon


def test_a_network_that_has_no_place_for_it_is_refused() -> None:
    with pytest.raises(RecipeError, match="'adult-mlp' cannot subtract a mean"):
        recipe(model={"name": "adult-mlp", "centre": 2.0})


def test_a_selection_pays_for_it(tmp_path: Path) -> None:
    """What its candidates spend on the question they cannot spend on their steps."""
    noise = []
    for centre in ({}, {"centre": 2.0}):
        small = recipe(model={"name": NAME, **centre})
        found = select(small, "dpsgd", tmp_path / str(len(noise)), epsilon=3.0, mean=1.5, seed=0)
        assert found.result.epsilon <= 3.0
        words = " ".join(found.result.statement.split()).split("noise multiplier ")[1]
        noise.append(float(words.split(",")[0]))
    assert noise[1] > noise[0]
