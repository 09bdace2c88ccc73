"""The strong simple row: a linear model on fixed public features, plain DP-SGD (methods.md H).

At the same epsilon it beats most of the papers' networks. A comparison on images or text that
leaves it out flatters every method in it, so ``compare`` adds it.
"""

from __future__ import annotations

from typing import Any

from plumbline.experiments.recipe import DataPart, MethodPart, ModelPart, OptimizerPart, Recipe

LINEAR = ("scattering-linear", "hashed-linear")
LABEL = "linear on fixed features"
_MOMENTUM = {"momentum": 0.9}
_AVERAGED = {"momentum": 0.9, "dampening": 0.9}


def _scattering(clip: float = 0.1, rate: float = 4.0, scales: int = 2, **model: Any) -> MethodPart:
    return MethodPart(
        name="dpsgd",
        label=LABEL,
        settings={"clip": clip},
        optimizer=OptimizerPart(name="sgd", learning_rate=rate, options=_MOMENTUM),
        # The recipe's own data, of which only the features differ, are filled in below.
        data=DataPart(name="mnist", features="scattering", scales=scales),
        model=ModelPart(name="scattering-linear", options=model),
        expected_batch_size=4096,
        epochs=30,
    )


_GREY, _COLOUR = _scattering(), _scattering(in_channels=243, size=8)
ROWS = {
    "mnist": _GREY,
    "mnist-8": _GREY,
    "fashion-mnist": _GREY,
    "cifar10": _COLOUR,
    "svhn": _COLOUR,
    "imagenet32": _scattering(in_channels=243, size=8, classes=1000),
    "cifar100": _scattering(in_channels=243, size=8, classes=100),
    "celeba": _scattering(scales=4, in_channels=1251, size=4, classes=2, normalise=9).model_copy(
        update={"expected_batch_size": 1024}
    ),
    "imdb": MethodPart(
        name="dpsgd",
        label=LABEL,
        settings={"clip": 0.5},
        optimizer=OptimizerPart(name="sgd", learning_rate=200.0, options=_AVERAGED),
        data=DataPart(name="imdb-hashed", options={"bins": 8192}),
        model=ModelPart(name="hashed-linear", options={"bins": 8192}),
        expected_batch_size=4000,
        epochs=20,
    ),
}
"""By data set. Tables have none: their networks are nearly linear as it is."""


def with_simple_row(recipe: Recipe) -> Recipe:
    """The recipe with the row, where its data are images or text and it has none."""
    models = [recipe.model, *(row.model for row in recipe.methods if row.model is not None)]
    there = any(model.name in LINEAR for model in models)
    row = ROWS.get(recipe.data.name)
    if row is None or there or not recipe.simple_row:
        return recipe
    if row.data is not None and row.data.features is not None:
        own = {"name": recipe.data.name, "options": recipe.data.options}
        row = row.model_copy(update={"data": row.data.model_copy(update=own)})
    return recipe.model_copy(update={"methods": (*recipe.methods, row)})
