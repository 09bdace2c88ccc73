"""A recipe: data, model, methods, budget, optimizer and seeds of an experiment, as a TOML file.

Everything is checked where it enters, with the name of the field, what was given and what is
allowed. A recipe is a value: what two recipes have in common is run once.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from plumbline import methods, models
from plumbline.data.base import LOADERS
from plumbline.mechanism.calibration import Budget
from plumbline.methods import REGISTRY, Method

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
}


class RecipeError(ValueError):
    """A recipe that cannot be used, with the reason."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataPart(_Part):
    """Which data, by name, and the options of its loader."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known("data set", name, list(LOADERS))


class ModelPart(_Part):
    """Which network, by name, and the options of its builder."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known("network", name, list(models.MODELS))


class OptimizerPart(_Part):
    """Which optimizer, and its options."""

    name: Literal["sgd", "adam", "adamw", "nadam"] = "sgd"
    learning_rate: float = Field(gt=0)
    options: dict[str, Any] = Field(default_factory=dict)

    def build(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a model's trainable parameters."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        kind: Any = OPTIMIZERS[self.name]
        made: torch.optim.Optimizer = kind(trainable, lr=self.learning_rate, **self.options)
        return made


class BudgetPart(_Part):
    """How much privacy, on how many steps; the fields of ``plumbline.Budget``."""

    epsilon: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, ge=0)
    delta: float = Field(gt=0, lt=1)
    epochs: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    expected_batch_size: int = Field(ge=1)
    accountant: Literal["pld", "rdp"] = "pld"
    relation: Literal["add_remove", "replace_one"] = "add_remove"

    @model_validator(mode="after")
    def _one_of_each(self) -> BudgetPart:
        self.budget()
        return self

    def budget(self, noise_multiplier: float | None = None) -> Budget:
        """The budget; with a noise multiplier, that instead of epsilon."""
        given = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        return Budget(
            epsilon=self.epsilon if noise_multiplier is None else None,
            noise_multiplier=given,
            delta=self.delta,
            epochs=self.epochs,
            steps=self.steps,
            expected_batch_size=self.expected_batch_size,
        )


class MethodPart(_Part):
    """One method of a comparison: its name, settings, and its own learning rate if it has one.

    Attributes:
        name: Of ``plumbline.methods``.
        label: What it is called in tables; the name by default.
        settings: Its arguments.
        learning_rate: Instead of the recipe's.
    """

    name: str
    label: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    learning_rate: float | None = Field(default=None, gt=0)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known("method", name.replace("-", "_"), list(REGISTRY))

    @model_validator(mode="after")
    def _buildable(self) -> MethodPart:
        try:
            self.build()
        except TypeError as error:
            raise ValueError(f"method '{self.name}': {error}") from None
        return self

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.label or self.name

    def build(self) -> Method:
        """The method."""
        made: Method = getattr(methods, self.name)(**self.settings)
        return made


class Recipe(_Part):
    """An experiment.

    Attributes:
        name: What it is called.
        data: The data set.
        model: The network.
        budget: For every private method.
        optimizer: For every method that has no learning rate of its own.
        methods: What is compared.
        seeds: One run of each method for each; a seed splits the data, starts the weights, and
            draws batches and noise.
        baseline: The title of the method that the others are tested against.
        log_every: How many steps lie between logged measurements of the test part.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    data: DataPart
    model: ModelPart
    budget: BudgetPart
    optimizer: OptimizerPart
    methods: tuple[MethodPart, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    baseline: str | None = None
    log_every: int = Field(default=200, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        titles = [method.title for method in self.methods]
        if len(set(titles)) != len(titles):
            raise ValueError(f"methods have the titles {titles}; give each a label of its own")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds are {list(self.seeds)}; give each once")
        if self.baseline is not None and self.baseline not in titles:
            raise ValueError(f"baseline is {self.baseline!r}; it must be one of {titles}")
        return self

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """A recipe from a TOML file.

        Raises:
            RecipeError: Naming the file, the field, and what is wrong with it.
        """
        try:
            fields = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise RecipeError(f"The recipe {path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RecipeError(f"The recipe {path} is not valid TOML: {error}.") from error
        return cls.of(fields, str(path))

    @classmethod
    def of(cls, fields: dict[str, Any], where: str = "the recipe") -> Recipe:
        """A recipe from plain values."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            wrong = [
                f"  {'.'.join(map(str, one['loc'])) or 'recipe'}: {one['msg']}"
                + (f" (given: {one['input']!r})" if _short(one["input"]) else "")
                for one in error.errors()
            ]
            raise RecipeError(f"{where} cannot be used:\n" + "\n".join(wrong)) from None


def known(kind: str, name: str, names: Sequence[str]) -> str:
    """The name, if there is such a thing; else an error that names the nearest."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(sorted(names))}."
    raise ValueError(f"there is no {kind} {name!r}.{hint}")


def _short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) and len(str(value)) < 80
