"""The strong simple row is there whenever the data are images or text."""

from pathlib import Path

import pytest
import torch

from plumbline.data import Part
from plumbline.experiments import Recipe, RunSpec, running
from plumbline.experiments.simple import LABEL, ROWS, with_simple_row
from tests.experiments.small import fields


def images(**changes: object) -> Recipe:
    return Recipe.of(fields(data={"name": "mnist-8"}, model={"name": "fair-cnn-mnist"}, **changes))


def test_it_is_added_once_with_the_recipes_own_data() -> None:
    one = with_simple_row(images())
    assert [row.title for row in one.methods][-1] == LABEL
    assert one.methods[-1].data is not None
    assert (one.methods[-1].data.name, one.methods[-1].data.features) == ("mnist-8", "scattering")
    assert with_simple_row(one) == one


def test_tables_and_those_who_say_so_go_without() -> None:
    table = Recipe.of(fields())
    assert with_simple_row(table) == table
    without = images(simple_row=False)
    assert with_simple_row(without) == without


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_row_is_a_valid_part_of_a_recipe(name: str) -> None:
    one = with_simple_row(Recipe.of(fields(data={"name": name})))
    assert Recipe.of(one.model_dump(mode="json")) == one


def test_a_row_of_its_own_size_spends_the_recipes_epsilon() -> None:
    one = with_simple_row(images())
    plain, row = one.methods[1], one.methods[-1]
    budget = running.budget_of(RunSpec(one, row, 0), row.build(), 50_000)
    recipes = one.budget.budget().resolve(50_000)
    assert budget.epsilon == pytest.approx(recipes.epsilon)
    assert (budget.expected_batch_size, budget.epochs) == (4096, 30)
    assert running.budget_of(RunSpec(one, plain, 0), plain.build(), 50_000) == one.budget.budget()


def test_features_of_a_selection_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def features(part: Part, **_: object) -> torch.Tensor:
        seen.append(len(part))
        return torch.arange(len(part)).float()[:, None]

    monkeypatch.setattr(running.scattering, "features", features)
    whole = Part(torch.zeros(10, 1, 8, 8), torch.arange(10))
    chosen = whole.select(torch.tensor([7, 2]))
    scattered = running._scattered(chosen, 2)
    assert seen == [10]
    assert scattered.x.flatten().tolist() == [7.0, 2.0]  # type: ignore[union-attr]
    assert scattered.y.tolist() == [7, 2]
