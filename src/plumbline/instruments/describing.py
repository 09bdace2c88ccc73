"""From a person's own objects, or the command line's options, to a recipe.

``recipe_of`` is the one place that knows the defaults of a run on somebody's own data. Whatever is
left out follows from the data: delta and the batch size from the number of records, the network
from the kind of data, the methods from whether there are groups.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

from pydantic import ValidationError

from plumbline.data.base import DATASETS
from plumbline.data.table_options import TableDescription
from plumbline.experiments.loading import load_part
from plumbline.experiments.objects import reference_to
from plumbline.experiments.recipe import (
    BudgetPart,
    DataPart,
    LossPart,
    ModelPart,
    OptimizerPart,
    ProbePart,
    Recipe,
    RecipeError,
    TunePart,
)
from plumbline.experiments.recipe_parts import with_schema_file
from plumbline.experiments.recipes import find
from plumbline.experiments.run_spec import is_run, only_study, read_spec, width_of
from plumbline.experiments.settings import wrong_fields
from plumbline.experiments.settling import table_plan
from plumbline.instruments.rows import correlated, row_for, row_in, rows_of
from plumbline.mechanism.accountant import Accountant
from plumbline.mechanism.calibration import Budget
from plumbline.models import MODELS
from plumbline.objectives import LOSSES, OPTIMIZERS
from plumbline.registry import MARK, UnknownPart, unknown

EPSILON, EPOCHS, SEEDS, TRIALS = 3.0, 10.0, 3, 8
DELTA, SAMPLING_RATE = 1e-6, 0.04
"""Where the number of records is private."""
MEASURE = ("bias", "errors", "norms")
"""What the runs of a comparison on one's own data measure of clipping."""
RATES = {"adam": (0.0005, 0.1), "adamw": (0.0005, 0.1), "nadam": (0.0005, 0.1)}
"""Where the learning rate of these is searched; of others, where a recipe's default says."""

_OPTIMIZER, _RATE = "adam", 0.002
_USUAL_MODEL = ModelPart(name="mlp", options={"hidden": 64})
_READINGS, _LOGGED = 10, 10
_APART = 3  # steps, at least: in a short run, measuring the test part takes longer than training


class Description(TableDescription, total=False):
    """What describes a run, or a comparison of many; all but the data may be left out.

    Each of data, model, loss, methods and optimizer may be a Python object or a function that makes
    it, a registered name, or ``"package.module:attribute"``.

    Attributes:
        data: A csv or parquet file; a pandas data frame; tensors ``(x, y)`` or ``(x, y, groups)``;
            a torch data set of (x, y); a ``Splits``; a name of ``plumbline.data``.
        target: Of a table, the column to predict. What is not declared of it is found privately,
            unless ``from_data`` takes it from the rows as they are.
        model: An ``nn.Module``, of which every run starts from a copy; a function that builds one;
            "linear", "mlp", or with the sizes of its hidden layers "mlp=64,32".
        loss: One for each record, such as ``nn.CrossEntropyLoss(reduction="none")``.
        method: The method of a single run.
        methods: Those of a comparison: by label, or only their names.
        settings: Of the method, for a single run by name.
        budget: How much privacy, on how many steps. In its place, or to change single fields of it:
        epsilon: One number, or several for a comparison.
        delta: By default 1/(10 n), rounded down to a power of ten; 1e-6 where n is private.
        epochs: How often a record is used, on average.
        batch: The expected batch size; by default n/40, at least 256. Where n is private, the
            sampling rate is 0.04.
        accountant: "pld" or "rdp".
        bands: Over how many steps the noise of every private method is correlated; by default 1,
            which is independent noise.
        threshold: Of two classes, the probability from which on the second one is predicted; or
            "auto", chosen on rows that are not trained on, which epsilon does not cover.
        class_weights: By how much records of a class count once they are clipped, by its name.
        optimizer: A class of ``torch.optim``, or a function of (parameters, lr).
        learning_rate: Of the optimizer.
        seeds: How many, or which.
        noise: "secure" noise comes from the operating system; "seeded" can be repeated.
        trials: How many settings of each method are tried when it is tuned; 0 tunes none before a
            comparison.
        objective: The metric that tuning aims at; by default the loss.
        measure: Diagnostics along the runs, by name; a single run has none by default.
        name: What the experiment is called.
    """

    data: Any
    target: str
    model: Any
    loss: Any
    method: Any
    methods: Mapping[str, Any] | Sequence[Any]
    settings: Mapping[str, Any]
    budget: Budget | BudgetPart
    epsilon: float | Sequence[float]
    delta: float
    epochs: float
    batch: int
    accountant: Accountant
    bands: int
    threshold: float | Literal["auto"]
    class_weights: Mapping[str, float]
    optimizer: Any
    learning_rate: float
    seeds: int | Sequence[int]
    noise: Literal["secure", "seeded"]
    trials: int
    objective: str
    measure: Sequence[str]
    name: str


_TABLE = ("target", *TableDescription.__annotations__)
_BUDGET = {"delta": "delta", "batch": "expected_batch_size", "accountant": "accountant"}
_OWN = {"epsilon": "epsilon", "epochs": "epochs", "batch": "expected_batch_size"}


def recipe_of(
    recipe: Recipe | str | os.PathLike[str] | None = None, **description: Unpack[Description]
) -> Recipe:
    """A recipe: one that is given, read from its file, of a run's folder, or of a description.

    A description beside a recipe chooses among its methods, and changes its budget, optimizer,
    seeds and trials.

    Raises:
        RecipeError: If something cannot be used, in one line that says what to change.
    """
    if recipe is None:
        if "data" not in description:
            raise RecipeError("There is neither a recipe nor data; give one of them.")
        try:
            return _described(description)
        except ValidationError as error:
            raise RecipeError(wrong_fields(error)) from None
        except UnknownPart as error:
            raise RecipeError(str(error)) from error
    read = recipe if isinstance(recipe, Recipe) else _read(recipe)
    own = [name for name in ("data", *_TABLE, "model", "loss") if name in description]
    if own:
        raise RecipeError(
            f"'{own[0]}' is given beside the recipe '{read.name}', which has its own. Leave it "
            "out, or change a copy of the recipe."
        )
    return _changed(read, description) if description else read


def comparison_of(
    recipe: Recipe | str | os.PathLike[str] | None = None, **description: Unpack[Description]
) -> Recipe:
    """The recipe of a comparison: as ``recipe_of``, but of a run's folder its data and budget.

    What was found privately about the data is not asked for again. Methods, seeds and trials are
    those of a comparison, and the network that of the run where it is not the usual one.
    """
    place = None if recipe is None or isinstance(recipe, Recipe) else only_study(Path(recipe))
    if place is None or not is_run(place):
        return recipe_of(recipe, **description)
    run = read_spec(place).recipe
    same: Description = {
        "data": run.data,
        "loss": run.loss.name,
        "budget": run.budget,
        "optimizer": run.optimizer.name,
        "class_weights": run.class_weights,
        "name": run.name,
    }
    if run.threshold is not None:
        same["threshold"] = run.threshold
    if run.model not in (_USUAL_MODEL, ModelPart(name="linear")):
        same["model"] = run.model
    same.update(description)
    return recipe_of(**same)


def default_delta(records: int) -> float:
    """1/(10 n), rounded down to a power of ten."""
    exponent = -1
    while 10 ** (-exponent) < 10 * records:
        exponent -= 1
    return float(f"1e{exponent}")


def _read(place: str | os.PathLike[str]) -> Recipe:
    """A recipe from its file, by its name, or of the run in a folder."""
    folder = only_study(Path(place))
    return read_spec(folder).recipe if is_run(folder) else Recipe.read(find(os.fspath(place)))


def _described(given: Description) -> Recipe:
    data, seeds = _data(given), _seeds(given.get("seeds", SEEDS))
    kind = _kind_of(data, seeds[0])
    budget, epsilons = _budget(given, kind.records)
    optimizer = reference_to(OPTIMIZERS, given.get("optimizer", _OPTIMIZER))
    steps = budget.steps or (budget.epochs or 1) / budget.rate(kind.records)
    if "model" in given:
        model = _model(given["model"])
    elif kind.numbers:
        model = _USUAL_MODEL
    else:
        model = ModelPart(name="linear")
    usual = "mse" if data.numeric_target else LossPart().name
    measure = given.get("measure", () if "method" in given else MEASURE)
    tune: dict[str, Any] = {"before_comparing": given.get("trials") != 0}
    tune |= {"trials": given.get("trials") or TRIALS}
    tune |= {"learning_rate": RATES[optimizer]} if optimizer in RATES else {}
    tune |= {"objective": given["objective"]} if "objective" in given else {}
    return Recipe(
        name=given.get("name") or _name(data.title),
        data=data,
        model=model,
        budget=budget,
        epsilons=epsilons,
        optimizer=OptimizerPart(
            name=optimizer, learning_rate=float(given.get("learning_rate", _RATE))
        ),
        loss=LossPart(name=reference_to(LOSSES, given.get("loss", usual))),
        methods=rows_of(given, kind.groups, linear=kind.numbers),
        threshold=given.get("threshold"),
        class_weights={name: float(one) for name, one in given.get("class_weights", {}).items()},
        seeds=seeds,
        noise=given.get("noise", "secure"),
        log_every=max(_APART, math.ceil(steps) // _LOGGED),
        probe=ProbePart(every=max(1, math.ceil(steps) // _READINGS), measure=tuple(measure))
        if measure
        else None,
        tune=TunePart.model_validate(tune),
    )


class _Kind(NamedTuple):
    """What of the data the defaults follow from; ``records`` is None where it is private."""

    records: int | None
    groups: bool
    numbers: bool


def _kind_of(data: DataPart, seed: int) -> _Kind:
    plan = table_plan(data, seed)
    if plan is not None:  # of which no row is looked at
        return _Kind(plan.training_records, bool(plan.sensitive), numbers=True)
    splits = load_part(data, seed)
    return _Kind(splits.train.known_records, bool(splits.groups), numbers=bool(width_of(splits)))


def _data(given: Description) -> DataPart:
    data: Any = given["data"]
    if isinstance(data, DataPart):
        return data
    said: dict[str, Any] = {name: given[name] for name in _TABLE if name in given}  # type: ignore[literal-required]
    options = {name: _plain(value) for name, value in said.items() if value or type(value) is int}
    named = isinstance(data, str) and (data in DATASETS or MARK in data or not Path(data).suffix)
    if isinstance(data, str | Path) and not named:
        return DataPart.model_validate({"table": os.fspath(data), **options})
    token = reference_to(DATASETS, data, label=given.get("name", "data"), private=True)
    return DataPart(name=token, options=with_schema_file(options))


def _plain(value: Any) -> Any:
    """A value as a recipe has it."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {
            name: part if isinstance(part, str | int | float) else list(part)
            for name, part in value.items()
        }
    return value if isinstance(value, int) else list(value)


def _model(given: Any) -> ModelPart:
    """A network; "mlp=64,32" has the sizes of its hidden layers with it."""
    if isinstance(given, ModelPart):
        return given
    name, equals, sizes = given.partition("=") if isinstance(given, str) else ("", "", "")
    if not equals or MARK in name:
        if name and MARK not in name and name not in MODELS:
            words = unknown("network", name, list(MODELS))
            if " mean " not in words:  # a list of the papers' networks helps nobody here
                words = (
                    f"There is no network '{name}'. For a table there are linear, mlp, and "
                    "mlp=64,32 with the sizes of its hidden layers; docs/data.md has the others."
                )
            raise RecipeError(words)
        return ModelPart(name=reference_to(MODELS, given))
    if name != "mlp" or not all(size.strip().isdecimal() for size in sizes.split(",")):
        raise RecipeError(
            f"The network is {given!r}; sizes are given as in 'mlp=64,32', for two hidden layers."
        )
    return ModelPart(name=name, options={"hidden": [int(size) for size in sizes.split(",")]})


def _name(title: str) -> str:
    stem = Path(title.rpartition(":")[2]).stem or "data"
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem)
    return kept if kept[0].isalnum() else f"x{kept}"


def _seeds(given: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(range(given)) if isinstance(given, int) else tuple(given)


def _budget(given: Description, records: int | None) -> tuple[BudgetPart, tuple[float, ...]]:
    """The budget at the middle epsilon, and all epsilons where there are several.

    Of a private number of records neither delta nor the sampling rate may follow.
    """
    whole = given.get("budget")
    fields: dict[str, Any] = {"epsilon": EPSILON, "epochs": EPOCHS}
    if isinstance(whole, BudgetPart):
        fields = whole.model_dump()
    elif whole is not None:
        fields = {name: getattr(whole, name) for name in BudgetPart.of_budget}
        if whole.sampling_rate is not None and records is not None:
            size = max(1, round(whole.sampling_rate * records))
            fields |= {"sampling_rate": None, "expected_batch_size": size}
    elif records is None:
        fields |= {"delta": DELTA, "sampling_rate": SAMPLING_RATE}
    else:
        fields["delta"] = default_delta(records)
        fields["expected_batch_size"] = min(records, max(256, records // 40))
    epsilons = _put(given, fields)
    return BudgetPart.model_validate(fields), epsilons


def _put(given: Description, budget: dict[str, Any]) -> tuple[float, ...]:
    """Puts what is given into the fields of a budget; all epsilons, where there are several."""
    epsilons = given.get("epsilon", ())
    several = (epsilons,) if isinstance(epsilons, int | float) else tuple(epsilons)
    if several:
        budget |= {"epsilon": sorted(several)[len(several) // 2], "noise_multiplier": None}
    if "epochs" in given:
        budget |= {"epochs": given["epochs"], "steps": None}
    if "batch" in given:
        budget["sampling_rate"] = None
    budget |= {field: given[name] for name, field in _BUDGET.items() if name in given}  # type: ignore[literal-required]
    return tuple(float(one) for one in several) if len(several) > 1 else ()


def _changed(recipe: Recipe, given: Description) -> Recipe:
    """The recipe with what is given in place of its own; epsilon replaces a noise multiplier."""
    fields: dict[str, Any] = recipe.model_dump(mode="json")
    chosen = [given["method"]] if "method" in given else given.get("methods", recipe.methods)
    parts = [row_in(recipe, one) or row_for("", one) for one in list(chosen)]
    rows = [one.model_dump(mode="json") for one in parts]
    if "bands" in given:
        rows = correlated(parts, given["bands"])
    if "settings" in given:
        rows[0]["settings"] |= given["settings"]
    epsilons = _put(given, fields["budget"])
    if "epsilon" in given:
        fields["epsilons"] = epsilons
    dropped = {
        field for name, field in _OWN.items() if name in given
    }  # which rows had of their own
    if "optimizer" in given or "learning_rate" in given:
        dropped |= {"learning_rate", "optimizer"}
        name = reference_to(OPTIMIZERS, given.get("optimizer", recipe.optimizer.name))
        if name != recipe.optimizer.name:
            fields["optimizer"] |= {"name": name, "options": {}}
        if "learning_rate" in given:
            fields["optimizer"]["learning_rate"] = given["learning_rate"]
    if "trials" in given:
        fields["tune"] |= {"before_comparing": given["trials"] > 0}
        fields["tune"] |= {"trials": given["trials"]} if given["trials"] else {}
    if "objective" in given:
        fields["tune"]["objective"] = given["objective"]
    for name in ("threshold", "class_weights"):
        if name in given:
            fields[name] = given[name]  # type: ignore[literal-required]
    if "seeds" in given:
        fields["seeds"] = _seeds(given["seeds"])
    fields["noise"] = given.get("noise", recipe.noise)
    for row in rows:
        row.update(dict.fromkeys(dropped))
    made = Recipe.of({**fields, "methods": rows, "baseline": None})
    kept = recipe.baseline in [row.title for row in made.methods]
    return made.model_copy(update={"baseline": recipe.baseline if kept else None})
