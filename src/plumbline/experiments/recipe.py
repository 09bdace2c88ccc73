"""A recipe: data, model, loss, methods, budget, optimizer and seeds of an experiment.

It is what a TOML file says, what the command line's options mean, and what the functions of
``plumbline.instruments`` make of Python objects. Each part is a registered name, a
``"package.module:attribute"``, or an object (``objects``). Everything is checked where it enters,
with the name of the field, what was given and what is allowed. (``strict=False`` below lets a
file's list be a tuple; what is in it stays strict.)
"""

from __future__ import annotations

import copy
import functools
import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tomli_w
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

from plumbline import methods
from plumbline.data.base import DATASETS
from plumbline.data.table_schema import STATED, declared
from plumbline.data.table_target import is_number
from plumbline.diagnostics.probe import USUAL, chosen
from plumbline.experiments.objects import found, is_object
from plumbline.experiments.sweeps import swept_rows
from plumbline.fairness.evaluating import BY_NAME
from plumbline.gradients import Isolation
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.release import StepRelease
from plumbline.methods import Method
from plumbline.models import MODELS
from plumbline.noise import Banded, Strategy, banded
from plumbline.objectives import LOSSES, OPTIMIZERS
from plumbline.registry import Registry, options_of, unknown


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


def _named(registry: Registry[Any]) -> AfterValidator:
    """A part of this kind: a name, a reference or an object."""

    def check(name: str) -> str:
        found(registry, name)
        return name

    return AfterValidator(check)


def _method(name: str) -> str:
    return name if is_object(name) else methods.find(name).name


def _diagnostics(measure: tuple[str, ...]) -> tuple[str, ...]:
    chosen(measure)
    return measure


def _objective(name: str) -> str:
    """A metric to aim at: one of which more, or less, is better."""
    plain = name.lower().replace("-", " ").replace("_", " ")
    allowed = [metric.name for metric in BY_NAME.values() if metric.better is not None]
    require_known("metric to aim at called", plain.removeprefix(WORST), allowed)
    return plain


def _range(given: tuple[float, float]) -> tuple[float, float]:
    if not 0 < given[0] < given[1]:
        raise ValueError("must be two positive numbers, the smaller one first")
    return given


WORST = "worst group "
"""How an objective begins that is the value of the group that has the worst one."""
Options = Annotated[dict[str, Any], AfterValidator(_finite)]
Range = Annotated[tuple[float, float], AfterValidator(_range)]


class SettingsPart(BaseModel):
    """A part of a file of settings: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_others(cls, given: Any) -> Any:
        # Before pydantic does, which does not say what is allowed.
        for name in given if isinstance(given, dict) else ():
            require_known("field", str(name), list(cls.model_fields))
        return given

    @classmethod
    def of(cls, fields: Any, where: str = "the recipe") -> Self:
        """The part that plain values say.

        Raises:
            RecipeError: Naming ``where`` they are from, the field, and what is wrong with it.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise RecipeError(wrong_fields(error, where)) from None


class StrictPart(SettingsPart):
    """A part of a recipe: values of another type are refused too, and never converted."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class FoundPart(StrictPart):
    """What was found privately about a table: its values are among the options of the data.

    Attributes:
        run: The release's name in the ledger.
        release: What was released, as ``StepRelease.to_dict`` has it.
        columns: The columns that were asked about.
        records: Whether the number of rows was.
    """

    run: str
    release: dict[str, Any]
    columns: tuple[str, ...] = Field(strict=False)
    records: bool

    @field_validator("release", mode="before")
    @classmethod
    def _from_toml(cls, given: Any) -> Any:
        """TOML has no null, so that a recipe's file leaves out a reason that there is not."""
        return {"unbounded_reason": None, **given} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _accountable(self) -> FoundPart:
        StepRelease.from_dict(self.release)
        return self


class DataPart(StrictPart):
    """Which data, the options of its loader, and fixed public features in its place.

    A table file is written ``table = "patients.csv"`` with the options of ``plumbline.data.table``
    beside it; that is the data set called "table". What the options do not declare is found
    privately before the first run, unless they say ``from_data = true``.

    Attributes:
        name: The data set.
        options: Of its loader.
        features: "scattering" for the scattering features of images.
        scales: How many scales these have.
        found: What of a table's options was found privately, if anything.
    """

    name: Annotated[str, _named(DATASETS)]
    options: Options = Field(default_factory=dict)
    found: FoundPart | None = None
    features: Literal["scattering"] | None = None
    scales: int = Field(default=2, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _table(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "table" not in given:
            return given
        kept = {name: given[name] for name in ("features", "scales", "found") if name in given}
        options = {name: value for name, value in given.items() if name not in (*kept, "table")}
        for name in options:
            require_known("option of a table called", name, list(options_of(DATASETS["table"])))
        if "target" not in options:
            raise ValueError("a table needs 'target': the column to predict")
        options = with_schema_file(options)
        return {"name": "table", "options": {"path": given["table"], **options}, **kept}

    @property
    def numeric_target(self) -> bool:
        """Whether a number is predicted, and not a class."""
        return is_number(self.options)

    @property
    def title(self) -> str:
        """What it is called where people read: the file's name for a table."""
        return Path(str(self.options.get("path"))).name if self.name == "table" else self.name


class ModelPart(StrictPart):
    """Which network, and the options of its builder.

    Attributes:
        name: The network.
        options: Of its builder. ``features`` and ``classes`` are filled in from the data where the
            builder has them and they are not given.
        centre: The noise multiplier of a mean of the features that is released before the first
            step, and subtracted from them; None subtracts nothing. The budget pays for it.
    """

    name: Annotated[str, _named(MODELS)]
    options: Options = Field(default_factory=dict)
    centre: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _can_be_centred(self) -> ModelPart:
        if self.centre is not None and not accepts(found(MODELS, self.name), "centred"):
            raise ValueError(f"the network {self.name!r} cannot subtract a mean")
        return self


class LossPart(StrictPart):
    """Which loss, one for each record, and its options."""

    name: Annotated[str, _named(LOSSES)] = "cross_entropy"
    options: Options = Field(default_factory=dict)


class OptimizerPart(StrictPart):
    """Which optimizer, its learning rate and its options."""

    name: Annotated[str, _named(OPTIMIZERS)] = "sgd"
    learning_rate: float = Field(gt=0)
    options: Options = Field(default_factory=dict)

    def build(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a model's trainable parameters."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        kind: Any = found(OPTIMIZERS, self.name)
        made: torch.optim.Optimizer = kind(trainable, lr=self.learning_rate, **self.options)
        return made


class BudgetPart(StrictPart):
    """How much privacy, on how many steps; the fields of ``plumbline.Budget``."""

    epsilon: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, ge=0)
    delta: float = Field(gt=0, lt=1)
    epochs: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    expected_batch_size: int | None = Field(default=None, ge=1)
    sampling_rate: float | None = Field(default=None, gt=0, le=1)
    accountant: Literal["pld", "rdp"] = "pld"
    relation: Literal["add_remove", "replace_one"] = "add_remove"

    @model_validator(mode="after")
    def _one_of_each(self) -> BudgetPart:
        self.budget()
        return self

    of_budget: ClassVar[tuple[str, ...]] = (
        "epsilon", "noise_multiplier", "delta", "epochs", "steps", "expected_batch_size",
        "sampling_rate",
    )  # fmt: skip
    """The fields that are those of ``plumbline.Budget``."""

    def budget(self) -> Budget:
        """The budget."""
        return Budget(**self.model_dump(include=set(self.of_budget)))

    def rate(self, records: int | None) -> float:
        """The sampling rate, for a number of records where it follows from one."""
        if self.sampling_rate is not None:
            return self.sampling_rate
        return (self.expected_batch_size or 1) / (records or 1)


class ProbePart(StrictPart):
    """Diagnostics of the training records, which epsilon does not cover.

    Attributes:
        every: How many steps lie between readings.
        records: How many training records they are taken on.
        measure: What is measured, along the way or once after the last step: names of
            ``plumbline.diagnostics.DIAGNOSTICS``, or ``"package.module:function"``.
    """

    every: int = Field(ge=1)
    records: int = Field(default=256, ge=2)
    measure: Annotated[tuple[str, ...], AfterValidator(_diagnostics)] = Field(
        default=USUAL, strict=False
    )


class TunePart(StrictPart):
    """How every method is tuned: the same for all.

    Attributes:
        trials: How many settings of each method are tried.
        seeds: Each trial is run with each of these.
        validation: The share of the training records that trials are judged on, not trained on.
        objective: What is judged: a metric, or "worst group" and one.
        learning_rate: From where to where the learning rate is searched.
        clip: The same for the clipping bound.
        before_comparing: Whether ``compare`` tunes every method first, and compares the tuned ones.
    """

    trials: int = Field(default=20, ge=1)
    seeds: tuple[int, ...] = Field(default=(1000,), min_length=1, strict=False)
    validation: float = Field(default=0.2, gt=0, lt=1)
    objective: Annotated[str, AfterValidator(_objective)] = "loss"
    learning_rate: Range = Field(default=(0.003, 30.0), strict=False)
    clip: Range = Field(default=(0.03, 3.0), strict=False)
    before_comparing: bool = False


class NoisePart(StrictPart):
    """Noise correlated between steps; the arguments of ``plumbline.noise.banded``."""

    bands: int = Field(ge=1)
    parts: int | None = Field(default=None, ge=1)
    momentum: float | None = Field(default=None, ge=0, lt=1)
    decay: float = Field(default=0.0, ge=0, lt=1)
    strategy: Strategy = "root"

    @model_validator(mode="after")
    def _buildable(self) -> NoisePart:
        self.build()
        return self

    def build(self) -> Banded:
        """The noise."""
        return banded(**self.model_dump())


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


@functools.lru_cache
def _is_private(name: str, settings: str) -> bool:
    return MethodPart(name=name, settings=json.loads(settings)).build().private


def with_schema_file(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a table with what its schema file says, in place of the file.

    A run then keeps what was declared, and not where it stood.
    """
    if not options.get("schema"):
        return options
    said = declared(**{name: options[name] for name in STATED if name in options})
    return {k: v for k, v in options.items() if k not in STATED} | said.options()


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        RecipeError: If it cannot be read, naming the file.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not text, not TOML, or nested too deeply
        raise RecipeError(f"{path} is not valid TOML: {error}.") from error


def wrong_fields(error: ValidationError, where: str = "") -> str:
    """What is wrong with each field, in words.

    Args:
        error: What was found.
        where: The file; what was in none is told in one line, by our own words where there are any.
    """
    wrong = []
    for one in error.errors():
        field = ".".join(map(str, one["loc"])) or "recipe"
        words = one["msg"].removeprefix("Value error, ")
        if _short(one["input"]) and repr(one["input"]) not in words:
            words += f" (given: {one['input']!r})"
        named = where or one["type"] != "value_error"
        wrong.append(f"{field}: {words}" if named else words)
    lines = [f"{where} cannot be used:", *wrong]
    return "\n  ".join(lines) if where else "; ".join(wrong)


def require_known(kind: str, name: str, names: Sequence[str]) -> None:
    """Refuses a name that is not among those there are.

    Raises:
        RecipeError: With the nearest name.
    """
    if name not in names:
        raise RecipeError(unknown(kind, name, names))


def accepts(make: Any, option: str) -> bool:
    """Whether a function or class takes an option; an object that is not called takes none."""
    return callable(make) and option in options_of(make)


def _without_none(value: Any) -> Any:
    """Plain values without None, for which TOML has no word."""
    if isinstance(value, dict):
        return {key: _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list) else value


def _short(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) and len(str(value)) < 80
