"""A recipe: data, model, methods, budget, optimizer and seeds of an experiment, as a TOML file.

Everything is checked where it enters, with the name of the field, what was given and what is
allowed. A recipe is a value: what two recipes have in common is run once. (``strict=False`` below
lets a file's list be a tuple; what is in it stays strict.)
"""

from __future__ import annotations

import difflib
import inspect
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from plumbline import methods, models
from plumbline.data.base import DATASETS
from plumbline.mechanism.calibration import Budget
from plumbline.methods import METHODS, Method

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
}


class RecipeError(ValueError):
    """A recipe that cannot be used, with the reason."""


def _finite(value: Any) -> Any:
    """Refuses what has no name in JSON, by which a run is known."""
    parts = list(value.values()) if isinstance(value, dict) else value
    if isinstance(parts, list):
        for part in parts:
            _finite(part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


Options = Annotated[dict[str, Any], AfterValidator(_finite)]


class SettingsPart(BaseModel):
    """A part of a file of settings: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_others(cls, given: Any) -> Any:
        # Before pydantic does, which does not say what is allowed.
        for name in given if isinstance(given, dict) else ():
            known("field", str(name), list(cls.model_fields))
        return given


class StrictPart(SettingsPart):
    """A part of a recipe: values of another type are refused too, and never converted."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class DataPart(StrictPart):
    """Which data, by name, the options of its loader, and fixed public features in its place.

    Attributes:
        name: Of ``plumbline.data``.
        options: Of its loader.
        features: "scattering" for the scattering features of images.
        scales: How many scales these have.
    """

    name: str
    options: Options = Field(default_factory=dict)
    features: Literal["scattering"] | None = None
    scales: int = Field(default=2, ge=1)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known("data set", name, list(DATASETS))


class ModelPart(StrictPart):
    """Which network, by name, and the options of its builder.

    Attributes:
        name: Of ``plumbline.models``.
        options: Of its builder.
        centre: The noise multiplier of a mean of the features that is released before the first
            step, and subtracted from them; None subtracts nothing. The budget pays for it.
    """

    name: str
    options: Options = Field(default_factory=dict)
    centre: float | None = Field(default=None, gt=0)

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known("network", name, list(models.MODELS))

    @model_validator(mode="after")
    def _can_be_centred(self) -> ModelPart:
        if self.centre is not None and not models.accepts(self.name, "centred"):
            raise ValueError(f"the network {self.name!r} cannot subtract a mean")
        return self

    def build(self) -> torch.nn.Module:
        """The network."""
        centred = {} if self.centre is None else {"centred": True}
        return models.build(self.name, **self.options, **centred)


class OptimizerPart(StrictPart):
    """Which optimizer, and its options."""

    name: Literal["sgd", "adam", "adamw", "nadam"] = "sgd"
    learning_rate: float = Field(gt=0)
    options: Options = Field(default_factory=dict)

    def build(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a model's trainable parameters."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        kind: Any = OPTIMIZERS[self.name]
        made: torch.optim.Optimizer = kind(trainable, lr=self.learning_rate, **self.options)
        return made


class BudgetPart(StrictPart):
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

    def budget(self) -> Budget:
        """The budget."""
        return Budget(
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            epochs=self.epochs,
            steps=self.steps,
            expected_batch_size=self.expected_batch_size,
        )


class ProbePart(StrictPart):
    """Diagnostics of the training records, which epsilon does not cover.

    Attributes:
        every: How many steps lie between readings.
        records: How many training records they are taken on.
        measure: What is read along the way; names of ``plumbline.experiments.probing.ALONG``.
        final: What is measured once, after the last step; names of ``probing.FINAL``.
    """

    every: int = Field(ge=1)
    records: int = Field(default=256, ge=2)
    measure: tuple[str, ...] = Field(default=("bias", "errors", "norms", "symmetry"), strict=False)
    final: tuple[str, ...] = Field(default=(), strict=False)


class TunePart(StrictPart):
    """How every method is tuned: the same for all.

    Attributes:
        trials: How many settings of each method are tried.
        seeds: Each trial is run with each of these.
        validation: The share of the training records that trials are judged on, not trained on.
        objective: What is judged.
        learning_rate: From where to where the learning rate is searched.
        clip: The same for the clipping bound.
    """

    trials: int = Field(default=20, ge=1)
    seeds: tuple[int, ...] = Field(default=(1000,), min_length=1, strict=False)
    validation: float = Field(default=0.2, gt=0, lt=1)
    objective: Literal["accuracy", "loss", "worst group accuracy", "worst group loss"] = "loss"
    learning_rate: tuple[float, float] = Field(default=(0.003, 30.0), strict=False)
    clip: tuple[float, float] = Field(default=(0.03, 3.0), strict=False)

    @field_validator("learning_rate", "clip")
    @classmethod
    def _range(cls, given: tuple[float, float]) -> tuple[float, float]:
        if not 0 < given[0] < given[1]:
            raise ValueError("must be two positive numbers, the smaller one first")
        return given


Origin = Literal["given", "paper", "tuned"]


class MethodPart(StrictPart):
    """One row of a comparison: a method, its settings, and what it has instead of the recipe's.

    Attributes:
        name: Of ``plumbline.methods``.
        label: What it is called in tables; the name by default.
        origin: Where its settings come from. A method may be in a recipe once for each.
        settings: Its arguments.
        learning_rate: Instead of the recipe's.
        optimizer, data, model, averaging: The same, for a row that differs in more than its method.
        expected_batch_size, epochs: The same; epsilon and delta stay the recipe's.
    """

    name: str
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

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return known("method", name.replace("-", "_"), list(METHODS))

    @model_validator(mode="after")
    def _buildable(self) -> MethodPart:
        for setting in self.settings:
            known_setting(self.name, setting)
        try:
            self.build()
        except TypeError as error:
            raise ValueError(f"method '{self.name}': {error}") from None
        return self

    @property
    def title(self) -> str:
        """What it is called in tables: different for every row of a recipe."""
        name = self.label or self.name
        return name if self.origin == "given" else f"{name} ({self.origin})"

    @property
    def own_sizes(self) -> dict[str, Any]:
        """The fields of a budget that it has instead of the recipe's, besides the noise."""
        own: dict[str, Any] = {}
        if self.expected_batch_size is not None:
            own["expected_batch_size"] = self.expected_batch_size
        if self.epochs is not None:
            own |= {"epochs": self.epochs, "steps": None}
        return own

    def build(self) -> Method:
        """The method."""
        made: Method = getattr(methods, self.name)(**self.settings)
        return made


class Recipe(StrictPart):
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
        averaging: The decay of the averaged weights that are then judged instead of the last.
        probe: What is measured of clipping along the way, if anything.
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
    methods: tuple[MethodPart, ...] = Field(min_length=1, strict=False)
    seeds: tuple[int, ...] = Field(min_length=1, strict=False)
    baseline: str | None = None
    log_every: int = Field(default=200, ge=1)
    averaging: float | None = Field(default=None, gt=0, lt=1)
    probe: ProbePart | None = None
    tune: TunePart = TunePart()
    simple_row: bool = True

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
        except (ValueError, RecursionError) as error:  # not text, not TOML, or nested too deeply
            raise RecipeError(f"The recipe {path} is not valid TOML: {error}.") from error
        # A reproduction's file has its recipe within.
        within = "study" in fields and "settings" in fields
        return cls.of(fields["settings"] if within else fields, str(path))

    @classmethod
    def of(cls, fields: dict[str, Any], where: str = "the recipe") -> Recipe:
        """A recipe from plain values."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise RecipeError(wrong_fields(error, where)) from None


def wrong_fields(error: ValidationError, where: str) -> str:
    """What is wrong with each field, in words."""
    wrong = [
        f"  {'.'.join(map(str, one['loc'])) or 'recipe'}: "
        + one["msg"].removeprefix("Value error, ")
        + (f" (given: {one['input']!r})" if _short(one["input"]) else "")
        for one in error.errors()
    ]
    return f"{where} cannot be used:\n" + "\n".join(wrong)


def known(kind: str, name: str, names: Sequence[str]) -> str:
    """The name, if there is such a thing; else an error that names the nearest."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(sorted(names))}."
    raise ValueError(f"there is no {kind} {name!r}.{hint}")


def known_setting(method: str, name: str) -> str:
    """The name, if the method has such a setting; else an error that names the nearest."""
    names = list(inspect.signature(METHODS[method].make).parameters)
    if not names:
        raise ValueError(f"there is no setting {name!r}: the method '{method}' has no settings.")
    return known(f"setting of the method '{method}' called", name, names)


def require_known(kind: str, name: str, names: Sequence[str]) -> None:
    """The same for a name that is not in a file.

    Raises:
        RecipeError: With the nearest name, if there is no such thing.
    """
    try:
        known(kind, name, names)
    except ValueError as error:
        raise RecipeError(f"{error}") from None


def _short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) and len(str(value)) < 80
