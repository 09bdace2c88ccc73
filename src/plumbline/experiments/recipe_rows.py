"""One row of a comparison: a method, its settings, and what it has instead of the recipe's."""

from __future__ import annotations

import copy
import functools
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from plumbline import methods
from plumbline.experiments.objects import found, is_object
from plumbline.experiments.recipe_parts import DataPart, ModelPart, NoisePart, OptimizerPart
from plumbline.experiments.settings import Options, StrictPart
from plumbline.methods import Method


def _method(name: str) -> str:
    return name if is_object(name) else methods.find(name).name


Origin = Literal["given", "paper", "tuned", "selected"]


class MethodPart(StrictPart):
    """One row of a comparison: a method, its settings, and what it has instead of the recipe's.

    Attributes:
        name: The method.
        label: What it is called in tables; the name by default.
        origin: Where its settings come from. A method may be in a recipe once for each.
        settings: Its arguments.
        learning_rate: Instead of the recipe's.
        optimizer, data, model, averaging: The same, for a row that differs in more than its method.
        expected_batch_size, epochs, epsilon: The same; delta stays the recipe's.
        noise: Noise that is correlated between steps, such as { bands = 16 }; without it each
            step's is independent.
        swept: Which of its settings, or its learning rate, a sweep has given it.
    """

    name: Annotated[str, AfterValidator(_method)]
    label: str = ""
    origin: Origin = "given"
    settings: Options = Field(default_factory=dict)
    learning_rate: float | None = Field(default=None, gt=0)
    optimizer: OptimizerPart | None = None
    data: DataPart | None = None
    model: ModelPart | None = None
    averaging: float | None = Field(default=None, gt=0, lt=1)
    expected_batch_size: int | None = Field(default=None, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    epsilon: float | None = Field(default=None, gt=0)
    noise: NoisePart | None = None
    swept: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _buildable(self) -> MethodPart:
        if is_object(self.name):
            return self
        try:
            method = self.build()
        except TypeError as error:
            raise ValueError(str(error)) from None
        if self.parts > 1 and (reason := method.independent_reason) is not None:
            raise ValueError(f"noise is to be correlated between steps, but {reason}")
        return self

    @property
    def parts(self) -> int:
        """In how many parts records are drawn; 1 where noise is independent."""
        return 1 if self.noise is None else self.noise.build().parts

    @property
    def title(self) -> str:
        """What it is called in tables: different for every row of a recipe."""
        origin = "" if self.origin == "given" else f" ({self.origin})"
        return f"{self.base}{origin}{self.place}"

    @property
    def base(self) -> str:
        """What rows share that differ in epsilon, in a sweep, or in their settings' origin."""
        return self.label or self.name.rpartition(":")[2]

    @property
    def place(self) -> str:
        """Where it stands among the rows of a sweep and of several epsilons."""
        swept = {name: self.settings.get(name, self.learning_rate) for name in self.swept}
        if self.epsilon is not None:
            swept["epsilon"] = self.epsilon
        return "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in swept.items())

    @property
    def own_sizes(self) -> dict[str, Any]:
        """The fields of a budget that it has instead of the recipe's, besides the noise."""
        own: dict[str, Any] = {}
        if self.expected_batch_size is not None:
            own |= {"expected_batch_size": self.expected_batch_size, "sampling_rate": None}
        if self.epochs is not None:
            own |= {"epochs": self.epochs, "steps": None}
        return own

    @property
    def private(self) -> bool:
        """Whether the method has a guarantee."""
        return _is_private(self.name, json.dumps(self.settings, sort_keys=True))

    def build(self) -> Method:
        """The method."""
        if is_object(self.name):
            made: Method = copy.deepcopy(found(methods.METHODS, self.name))
            return made
        return methods.find(self.name).make(**self.settings)


@functools.lru_cache
def _is_private(name: str, settings: str) -> bool:
    return MethodPart(name=name, settings=json.loads(settings)).build().private
