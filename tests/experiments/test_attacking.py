"""Attacks on what recipes train."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from plumbline.experiments import RecipeError, RunSpec, run
from plumbline.experiments.attacking import audit_recipe, averaged, losses, membership_of
from plumbline.experiments.loading import load_data
from plumbline.training import Private
from plumbline.training.losses import per_record
from tests.experiments.small import recipe


def spec(place: int = 1, held_out: float = 0.0, **changes: object) -> RunSpec:
    made = recipe(**changes)
    return RunSpec(made, made.methods[place], 0, held_out)


def test_a_row_of_a_recipe_is_audited_by_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Private] = []
    fit = Private.fit
    monkeypatch.setattr(
        Private, "fit", lambda self, *a, **k: seen.append(self) or fit(self, *a, **k)
    )
    steps: list[tuple[int, int]] = []
    found = audit_recipe(spec(), 200, on_progress=lambda *step: steps.append(step))
    (private,) = seen
    assert found.method == "dpsgd"
    assert found.claimed == private.epsilon(exact=True)
    assert steps[-1] == (10, 10)
    assert (found.found.canaries, found.found.guesses) == (200, 40)
    assert not found.found.refuted(found.claimed)
    # Canaries that are in are trained on with a wrong label, the others are not there.
    whole = load_data(spec()).train
    inside = found.membership.overall.members
    assert inside + found.membership.overall.others == 200
    train = private.setup.records.fetch(torch.arange(len(whole) - 200 + inside))
    assert len(train[1]) == private.plan.records == len(whole) - 200 + inside
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    assert torch.equal(train[1][: len(whole) - 200], whole.y[order[200:]])
    canaries = {tuple(x.tolist()): int(y) for x, y in zip(*whole.fetch(order[:200]), strict=True)}
    for x, y in zip(train[0][-inside:], train[1][-inside:], strict=True):
        assert canaries[tuple(x.tolist())] != int(y)
    assert list(found.membership.by_group) == ["male", "female"]


def test_what_is_learned_by_heart_is_found_and_claims_nothing() -> None:
    """Few records, many epochs, no noise: most guesses are right."""
    budget = {"noise_multiplier": 1.0, "delta": 1e-5, "steps": 100, "expected_batch_size": 100}
    adam = {"name": "adam", "learning_rate": 0.01}
    large = {"name": "adult-mlp"}
    one = spec(0, held_out=0.99, budget=budget, optimizer=adam, model=large)
    found = audit_recipe(one, 100, guesses=40)
    assert math.isinf(found.claimed)
    assert found.found.bound.epsilon > 0.5
    assert float(found.membership.overall.values["auc"]) > 0.75  # type: ignore[arg-type]


@pytest.mark.parametrize("canaries", [0, 20_000])
def test_too_many_canaries_are_refused(canaries: int) -> None:
    with pytest.raises(RecipeError, match=f"{canaries} canaries are asked for"):
        audit_recipe(spec(), canaries)


def test_a_finished_run_is_attacked_by_its_losses(tmp_path: Path) -> None:
    one = spec()
    result = run(one, tmp_path)
    folder = tmp_path / result.folder
    found = membership_of(one, folder, generator=np.random.default_rng(0), replicates=10)
    splits = load_data(one)
    assert (found.overall.members, found.overall.others) == (len(splits.train), len(splits.test))
    assert abs(float(found.overall.values["auc"]) - 0.5) < 0.03  # type: ignore[arg-type]
    lines = averaged([found, found])
    assert [line[0] for line in lines] == ["all", "male", "female"]
    assert all(len(line) == 7 for line in lines)
    (folder / "model.pt").unlink()
    with pytest.raises(RecipeError, match=r"has no model\.pt"):
        membership_of(one, folder, generator=np.random.default_rng(0))


def test_losses_are_the_records_own() -> None:
    part = load_data(spec()).test
    model = torch.nn.Sequential(torch.nn.Linear(98, 2), torch.nn.Dropout(0.5))
    found = losses(model, part, per_record(torch.nn.CrossEntropyLoss(reduction="none")))
    assert found.shape == (len(part),)
    x, y = part.fetch(torch.tensor([7]))
    with torch.no_grad():
        own = torch.nn.functional.cross_entropy(model[0](x), y)
    assert float(found[7]) == pytest.approx(float(own))
    assert model.training
