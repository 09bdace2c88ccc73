"""A recipe: data, model, loss, methods, budget, optimizer and seeds of an experiment.

It is what a TOML file says, what the command line's options mean, and what the functions of
``plumbline.instruments`` make of Python objects. Its parts are in ``recipe_parts`` and
``recipe_rows``, and can be imported from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, model_validator

from plumbline.experiments.recipe_parts import (
    BudgetPart,
    DataPart,
    FoundPart,
    LossPart,
    ModelPart,
    NoisePart,
    OptimizerPart,
    ProbePart,
    TunePart,
)
from plumbline.experiments.recipe_rows import MethodPart
from plumbline.experiments.settings import RecipeError, SettingsPart, StrictPart, read_toml
from plumbline.experiments.sweeps import swept_rows
from plumbline.gradients import Isolation

__all__ = [
    "BudgetPart",
    "DataPart",
    "FoundPart",
    "LossPart",
    "MethodPart",
    "ModelPart",
    "NoisePart",
    "OptimizerPart",
    "ProbePart",
    "Recipe",
    "RecipeError",
    "SettingsPart",
    "TunePart",
]


class Recipe(StrictPart):
    """An experiment.

    Attributes:
        name: What it is called.
        data: The data set.
        model: The network.
        budget: For every private method.
        optimizer: For every method that has no learning rate of its own.
        loss: One for each record.
        methods: What is compared.
        epsilons: Further epsilons at which every private method is run; the budget's is the one at
            which methods are tuned and diagnosed.
        seeds: One run of each method for each; a seed splits the data and starts the weights.
        noise: "seeded" draws batches and noise from the seed too, so that a run can be repeated bit
            for bit by whoever knows the seed; "secure" draws them from the operating system.
        baseline: The title of the method that the others are tested against.
        log_every: How many steps lie between logged measurements of the test part.
        averaging: The decay of the averaged weights that are then judged instead of the last.
        threshold: Of two classes, the probability from which on the second one is predicted; by
            default the more probable one is. "auto" has it chosen on a fifth of the training
            records, which are then not trained on; epsilon does not cover the choice.
        class_weights: By how much records of a class count once they are clipped, by its name; 1
            for others. Only their ratios matter: the largest becomes 1. They are public.
        isolation: How records are kept apart: all at once by "vmap", or in a "loop", which is
            slower, for networks that vmap cannot run.
        max_physical_batch: The most records whose gradients are taken at once, if they should be
            fewer than a batch, for memory. It changes no guarantee, and sums in their last digits.
        probe: What is measured of clipping along the way, if anything.
        sweep: In a file only: values of some settings, or of the learning rate. Each method that
            has the setting is run with each of its values, in every combination.
        tune: How ``tune`` searches; its defaults if left out.
        simple_row: Whether a comparison on images or text is given a linear model on fixed public
            features, unless it has one: a method that looks good only beside a weak network is
            found out by it.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    data: DataPart
    model: ModelPart
    budget: BudgetPart
    optimizer: OptimizerPart
    loss: LossPart = LossPart()
    methods: tuple[MethodPart, ...] = Field(min_length=1, strict=False)
    epsilons: tuple[float, ...] = Field(default=(), strict=False)
    seeds: tuple[int, ...] = Field(min_length=1, strict=False)
    noise: Literal["seeded", "secure"] = "seeded"
    baseline: str | None = None
    log_every: int = Field(default=200, ge=1)
    averaging: float | None = Field(default=None, gt=0, lt=1)
    threshold: Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] | None = None
    class_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    isolation: Isolation = "vmap"
    max_physical_batch: int | None = Field(default=None, ge=1)
    probe: ProbePart | None = None
    tune: TunePart = TunePart()
    simple_row: bool = True

    @model_validator(mode="before")
    @classmethod
    def _swept(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "sweep" not in given:
            return given
        rest = {name: value for name, value in given.items() if name != "sweep"}
        return {**rest, "methods": swept_rows(rest.get("methods", []), given["sweep"])}

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        titles = [method.title for method in self.methods]
        if len(set(titles)) != len(titles):
            twice = next(title for title in titles if titles.count(title) > 1)
            raise ValueError(f"two methods are called {twice!r}; give each a label of its own")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds are {list(self.seeds)}; give each once")
        if self.baseline is not None and self.baseline not in titles:
            raise ValueError(f"baseline is {self.baseline!r}; it must be one of {titles}")
        if self.data.numeric_target and self.loss.name.endswith("cross_entropy"):
            raise ValueError(
                f"the loss is {self.loss.name}, which is for classes, and the target "
                f"'{self.data.options['target']}' is a number; give 'mse' or 'huber'"
            )
        if self.epsilons and self.budget.epsilon is None:
            raise ValueError("epsilons are given beside a noise multiplier; give budget.epsilon")
        parts, rate = max(row.parts for row in self.methods), self.budget.sampling_rate
        if parts > 1 and self.budget.relation != "add_remove":
            raise ValueError("correlated noise is accounted for add_remove neighbours alone")
        if rate is not None and rate * parts > 1:
            raise ValueError(
                f"noise is correlated over {parts} steps at a sampling rate of {rate:g}; ask for "
                f"at most {int(1 / rate)} bands"
            )
        return self

    @property
    def rows(self) -> tuple[MethodPart, ...]:
        """The methods, and each private one again at every further epsilon."""
        more = [
            row.model_copy(update={"epsilon": epsilon})
            for epsilon in self.epsilons
            for row in self.methods
            if epsilon != self.budget.epsilon and row.epsilon is None and row.private
        ]
        return (*self.methods, *more)

    def toml(self, without: Sequence[str] = ()) -> str:
        """The recipe as a TOML file, without some of its fields."""
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude=set(without))
        return tomli_w.dumps(_without_none(fields))

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """A recipe from a TOML file.

        Raises:
            RecipeError: Naming the file, the field, and what is wrong with it.
        """
        fields = read_toml(Path(path))
        # A reproduction's file has its recipe within.
        within = "study" in fields and "settings" in fields
        return cls.of(fields["settings"] if within else fields, str(path))


def _without_none(value: Any) -> Any:
    """Plain values without None, for which TOML has no word."""
    if isinstance(value, dict):
        return {key: _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list) else value
