"""The parts of a recipe: data, network, loss, optimizer, budget, noise, diagnostics and tuning.

Each names something that is registered, a ``"package.module:attribute"`` or an object
(``objects``), and its options. (``strict=False`` below lets a file's list be a tuple; what is in
it stays strict.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field, field_validator, model_validator

from plumbline.data.base import DATASETS
from plumbline.data.table_options import STATED
from plumbline.data.table_schema import declared
from plumbline.data.table_target import is_number
from plumbline.diagnostics.probe import USUAL, chosen
from plumbline.experiments.objects import found
from plumbline.experiments.settings import Options, StrictPart, require_known
from plumbline.fairness.evaluating import BY_NAME
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.release import StepRelease
from plumbline.models import MODELS
from plumbline.noise import Banded, Strategy, banded
from plumbline.objectives import LOSSES, OPTIMIZERS
from plumbline.registry import Registry, options_of


def _named(registry: Registry[Any]) -> AfterValidator:
    """A part of this kind: a name, a reference or an object."""

    def check(name: str) -> str:
        found(registry, name)
        return name

    return AfterValidator(check)


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
Range = Annotated[tuple[float, float], AfterValidator(_range)]


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


def with_schema_file(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a table with what its schema file says, in place of the file.

    A run then keeps what was declared, and not where it stood.
    """
    if not options.get("schema"):
        return options
    said = declared(**{name: options[name] for name in STATED if name in options})
    return {k: v for k, v in options.items() if k not in STATED} | said.options()


def accepts(make: Any, option: str) -> bool:
    """Whether a function or class takes an option; an object that is not called takes none."""
    return callable(make) and option in options_of(make)
