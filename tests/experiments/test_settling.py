"""A recipe's schema is settled once, and each run costs what was asked, schema included."""

from pathlib import Path

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from plumbline.experiments.loading import load_data
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import run
from plumbline.experiments.settling import settled
from plumbline.experiments.verification import verify
from plumbline.instruments import recipe_of
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import StepRelease
from tests.cli.calling import people


def described(path: Path, **more: object) -> Recipe:
    return recipe_of(
        data=path,
        target="income",
        sensitive="sex",
        method="dpsgd",
        seeds=[0],
        epochs=0.4,
        **{"epsilon": 6.0, "noise": "seeded", **more},  # type: ignore[arg-type]
    )


def test_schema_and_steps_compose_to_what_was_asked(tmp_path: Path) -> None:
    recipe = settled(described(people(tmp_path / "p.csv", 2500)), tmp_path).recipe
    spec = RunSpec(recipe, recipe.methods[0], 0)
    result = run(spec, tmp_path)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    delta, kinds = 1e-6, []
    for stored, count in Ledger.read(tmp_path / spec.folder / "ledger").entries():
        release = StepRelease.from_dict(stored)
        delta -= release.delta * count
        kinds.append((release.sampling.rate, count))
        event = dp_accounting.GaussianDpEvent(release.noise_multiplier)
        if release.sampling.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(release.sampling.rate, event)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, count))
    assert kinds == [(1.0, 1), (0.04, 10)]
    assert accountant.get_epsilon(delta) == pytest.approx(6.0, rel=3e-3)
    assert result.epsilon <= 6.0
    assert delta == pytest.approx(0.9e-6)
    checks = {one.what: one.words for one in verify(tmp_path / spec.folder, data=True).checks}
    noisy = spec.public_records
    assert noisy is not None
    exact = len(load_data(spec).train)
    assert noisy != exact  # a model card shows the check, and may not show the exact number
    assert checks["data"] == f"about {noisy:,} training records, sampled at 0.04, as was charged"


def test_one_row_of_its_own_does_not_change_the_model(tmp_path: Path) -> None:
    """The shapes of the weights and the encoding are the same, under the same noise."""
    shapes, encodings = [], []
    for place, extra in enumerate(("", "999,Cairo,x,1,rich\n", "30,Cairo,f,5,low\n")):
        path = people(tmp_path / "p.csv", 2500)
        with path.open("a") as stream:
            stream.write(extra)
        root = tmp_path / str(place)
        recipe = settled(described(path), root).recipe
        spec = RunSpec(recipe, recipe.methods[0], 0)
        run(spec, root)
        weights = torch.load(root / spec.folder / "model.pt", weights_only=True)
        shapes.append({name: tuple(one.shape) for name, one in weights.items()})
        encodings.append((root / spec.folder / "encoding.json").read_text())
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(set(encodings)) == 1


def test_what_was_found_is_kept_and_belongs_to_its_data(tmp_path: Path) -> None:
    recipe = described(people(tmp_path / "p.csv", 2500), noise="secure")
    first, again = settled(recipe, tmp_path / "root"), settled(recipe, tmp_path / "root")
    assert first == again
    assert settled(first.recipe, tmp_path / "root").recipe == first.recipe
    assert Recipe.of(first.recipe.model_dump(mode="json")) == first.recipe
    other = settled(recipe, tmp_path / "elsewhere")
    assert other.recipe.data.found != first.recipe.data.found
    people(tmp_path / "p.csv", 2501)
    with pytest.raises(ValueError, match="holds a run on other data"):
        settled(recipe, tmp_path / "root")


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"relation": "replace_one"}, "the relation replace_one"),
        ({"epsilon": None, "noise_multiplier": 1.0}, "no epsilon"),
        ({"sampling_rate": None, "expected_batch_size": 64}, "--records N"),
    ],
)
def test_budgets_that_a_schema_cannot_be_found_for(
    tmp_path: Path, budget: dict[str, object], words: str
) -> None:
    recipe = described(people(tmp_path / "p.csv", 300))
    part = recipe.budget.model_copy(update=budget)
    with pytest.raises(RecipeError, match=words):
        settled(recipe.model_copy(update={"budget": part}), tmp_path / "root")
    assert not (tmp_path / "root").exists()
