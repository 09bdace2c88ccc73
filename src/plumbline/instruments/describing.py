"""From a person's own objects, or the command line's options, to a recipe.

``recipe_of`` is the one place that knows the defaults of a run on somebody's own data. Whatever is
left out follows from the data: delta and the batch size from the number of records, the network
from the kind of data, the methods from whether there are groups.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from pydantic import ValidationError

from plumbline import methods
from plumbline.data.base import DATASETS
from plumbline.experiments.loading import load_data
from plumbline.experiments.objects import reference_to
from plumbline.experiments.recipe import (
    BudgetPart,
    DataPart,
    LossPart,
    MethodPart,
    ModelPart,
    OptimizerPart,
    ProbePart,
    Recipe,
    RecipeError,
    TunePart,
    wrong_fields,
)
from plumbline.experiments.recipes import find
from plumbline.experiments.run_spec import RunSpec
from plumbline.mechanism.accountant import Accountant
from plumbline.mechanism.calibration import Budget
from plumbline.methods import Method
from plumbline.models import MODELS
from plumbline.objectives import LOSSES, OPTIMIZERS
from plumbline.registry import MARK, options_of
from plumbline.training.run_identity import facts_of

# On Adult at epsilon 1, DP-SGD is as accurate and far less well calibrated (loss 0.50, not 0.34).
METHOD = "global_adapt"
LABELS = {
    "nonprivate": "non-private",
    "dpsgd": "DP-SGD",
    "global_adapt": "Global-Adapt",
    "dpsgd_f": "DPSGD-F",
    "bam": "BAM",
}
LINEAR = "linear model"
EPSILON, EPOCHS, SEEDS, TRIALS = 3.0, 10.0, 3, 8
RATES = {"adam": (0.0005, 0.1), "adamw": (0.0005, 0.1), "nadam": (0.0005, 0.1)}
"""Where the learning rate of these is searched; of others, where a recipe's default says."""

_OPTIMIZER, _RATE, _HIDDEN = "adam", 0.002, 64
_READINGS, _LOGGED = 10, 10


class Description(TypedDict, total=False):
    """What describes a run, or a comparison of many; all but the data may be left out.

    Each of data, model, loss, methods and optimizer may be a Python object or a function that makes
    it, a registered name, or ``"package.module:attribute"``.

    Attributes:
        data: A csv or parquet file; a pandas data frame; tensors ``(x, y)`` or ``(x, y, groups)``;
            a torch data set of (x, y); a ``Splits``; a name of ``plumbline.data``.
        target: Of a table: the column to predict.
        sensitive: Of a table: the columns whose groups are reported.
        categorical: Of a table: columns of numbers that are categories.
        drop: Of a table: columns to leave out.
        missing: Of a table: "error" or "drop", for rows that lack a value.
        missing_values: Of a table: what a missing cell says.
        test: Of a table: a second file to evaluate on; else a fifth is held out.
        model: An ``nn.Module``, of which every run starts from a copy; a function that builds one.
        loss: One for each record, such as ``nn.CrossEntropyLoss(reduction="none")``.
        method: The method of a single run.
        methods: Those of a comparison: by label, or only their names.
        settings: Of the method, for a single run by name.
        budget: How much privacy, on how many steps. In its place, or to change single fields of it:
        epsilon: One number, or several for a comparison.
        delta: By default 1/(10 n), rounded down to a power of ten.
        epochs: How often a record is used, on average.
        batch: The expected batch size; by default n/40, at least 256.
        accountant: "pld" or "rdp".
        optimizer: A class of ``torch.optim``, or a function of (parameters, lr).
        learning_rate: Of the optimizer.
        seeds: How many, or which.
        noise: "secure" noise comes from the operating system; "seeded" can be repeated.
        trials: How many settings of each method are tried when it is tuned.
        objective: What tuning aims at.
        measure: Diagnostics along the runs, by name.
        name: What the experiment is called.
    """

    data: Any
    target: str
    sensitive: str | Sequence[str]
    categorical: Sequence[str]
    drop: Sequence[str]
    missing: Literal["error", "drop"]
    missing_values: Sequence[str]
    test: str | os.PathLike[str]
    model: Any
    loss: Any
    method: Any
    methods: Mapping[str, Any] | Sequence[Any]
    settings: Mapping[str, Any]
    budget: Budget
    epsilon: float | Sequence[float]
    delta: float
    epochs: float
    batch: int
    accountant: Accountant
    optimizer: Any
    learning_rate: float
    seeds: int | Sequence[int]
    noise: Literal["secure", "seeded"]
    trials: int
    objective: str
    measure: Sequence[str]
    name: str


_TABLE = ("target", "sensitive", "categorical", "drop", "missing", "missing_values", "test")


def recipe_of(
    recipe: Recipe | str | os.PathLike[str] | None = None, **description: Unpack[Description]
) -> Recipe:
    """A recipe: one that is given, read from its file, or made from a description.

    A description beside a recipe changes its budget, optimizer and seeds.

    Raises:
        RecipeError: If something cannot be used, in one line that says what to change.
    """
    if recipe is None:
        if "data" not in description:
            raise RecipeError("There is neither a recipe nor data; give one of them.")
        try:
            return _described(description)
        except ValidationError as error:
            raise RecipeError(wrong_fields(error, "what is given")) from None
    read = recipe if isinstance(recipe, Recipe) else Recipe.read(find(os.fspath(recipe)))
    own = [name for name in ("data", *_TABLE, "model", "loss", "methods") if name in description]
    if own:
        raise RecipeError(
            f"'{own[0]}' is given beside the recipe '{read.name}', which has its own. Leave it "
            "out, or change a copy of the recipe."
        )
    return _changed(read, description)


def default_delta(records: int) -> float:
    """1/(10 n), rounded down to a power of ten."""
    exponent = -1
    while 10 ** (-exponent) < 10 * records:
        exponent -= 1
    return float(f"1e{exponent}")


def _described(given: Description) -> Recipe:
    data = _data(given)
    optimizer = _optimizer(given)
    seeds = given.get("seeds", SEEDS)
    fields: dict[str, Any] = {
        "name": given.get("name") or _name(data.title),
        "data": data,
        "seeds": tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        "noise": given.get("noise", "secure"),
        "optimizer": optimizer,
        "loss": LossPart(name=reference_to(LOSSES, given.get("loss", LossPart().name))),
        "tune": _tune(given, optimizer),
    }
    # With what a first reading of the data needs; the rest follows from what is read.
    model = ModelPart(name=reference_to(MODELS, given.get("model", "mlp")))
    budget = BudgetPart(epsilon=1.0, delta=0.5, steps=1, expected_batch_size=1)
    rows = (MethodPart(name="dpsgd"),)
    first = Recipe(**{**fields, "model": model, "budget": budget, "methods": rows})
    splits = load_data(RunSpec(first, rows[0], fields["seeds"][0]))
    budget, epsilons = _budget(given, len(splits.train))
    steps = budget.steps or -(
        -(budget.epochs or 1) * len(splits.train) // budget.expected_batch_size
    )
    if "model" not in given:
        options = {"hidden": _HIDDEN} if splits.features else {}
        model = ModelPart(name="mlp" if splits.features else "linear", options=options)
    fields |= {
        "model": model,
        "budget": budget,
        "epsilons": epsilons,
        "methods": _rows(given, bool(splits.groups), linear=bool(splits.features)),
        "log_every": max(1, int(steps) // _LOGGED),
    }
    if "measure" in given:
        fields["probe"] = ProbePart(
            every=max(1, int(steps) // _READINGS), measure=tuple(given["measure"])
        )
    return Recipe.of(fields, "what is given")


def _data(given: Description) -> DataPart:
    data: Any = given["data"]
    table = {name: given[name] for name in _TABLE if given.get(name)}  # type: ignore[literal-required]
    if isinstance(data, Path) or (
        isinstance(data, str) and data not in DATASETS and _is_file(data)
    ):
        options: dict[str, Any] = {"table": os.fspath(data), **_plain(table)}
        return DataPart.model_validate(options)
    token = reference_to(DATASETS, data, label=given.get("name", "data"), private=True)
    return DataPart(name=token, options=_plain(table))


def _is_file(given: str) -> bool:
    return MARK not in given and bool(Path(given).suffix)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a recipe's file would have them."""
    return {
        name: os.fspath(value)
        if isinstance(value, os.PathLike)
        else value
        if isinstance(value, str)
        else list(value)
        for name, value in options.items()
    }


def _name(title: str) -> str:
    stem = Path(title.rpartition(":")[2]).stem or "data"
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem)
    return kept if kept[0].isalnum() else f"x{kept}"


def _optimizer(given: Description) -> OptimizerPart:
    name = reference_to(OPTIMIZERS, given.get("optimizer", _OPTIMIZER))
    return OptimizerPart(name=name, learning_rate=float(given.get("learning_rate", _RATE)))


def _tune(given: Description, optimizer: OptimizerPart) -> TunePart:
    fields: dict[str, Any] = {"trials": given.get("trials", TRIALS)}
    if optimizer.name in RATES:
        fields["learning_rate"] = RATES[optimizer.name]
    if "objective" in given:
        fields["objective"] = given["objective"]
    return TunePart.model_validate(fields)


def _budget(given: Description, records: int) -> tuple[BudgetPart, tuple[float, ...]]:
    """The budget at the middle epsilon, and all epsilons where there are several."""
    whole = given.get("budget")
    fields: dict[str, Any] = (
        {"epsilon": EPSILON, "epochs": EPOCHS}
        if whole is None
        else {
            name: getattr(whole, name) for name in BudgetPart.model_fields if hasattr(whole, name)
        }
    )
    epsilons = given.get("epsilon", ())
    several = (epsilons,) if isinstance(epsilons, int | float) else tuple(epsilons)
    if several:
        fields |= {"epsilon": sorted(several)[len(several) // 2], "noise_multiplier": None}
    if whole is None or "delta" in given:
        fields["delta"] = given.get("delta", default_delta(records))
    if "epochs" in given:
        fields |= {"epochs": given["epochs"], "steps": None}
    if whole is None or "batch" in given:
        fields["expected_batch_size"] = given.get("batch", min(records, max(256, records // 40)))
    elif fields.get("expected_batch_size") is None:
        fields["expected_batch_size"] = max(1, round((whole.sampling_rate or 1.0) * records))
    fields["accountant"] = given.get("accountant", "pld")
    budget = BudgetPart.model_validate(fields)
    return budget, tuple(float(one) for one in several) if len(several) > 1 else ()


def _rows(given: Description, groups: bool, *, linear: bool) -> tuple[MethodPart, ...]:
    if "method" in given:
        return (_row("", given["method"], given.get("settings", {})),)
    if "methods" in given:
        chosen = given["methods"]
        items = chosen.items() if isinstance(chosen, Mapping) else [("", one) for one in chosen]
        return tuple(_row(label, one) for label, one in items)
    names = [name for name in LABELS if groups or name != "dpsgd_f"]
    rows = [MethodPart(name=name, label=LABELS[name]) for name in names]
    if linear and "model" not in given:
        rows.append(MethodPart(name="dpsgd", label=LINEAR, model=ModelPart(name="linear")))
    return tuple(rows)


def _row(label: str, method: Any, settings: Mapping[str, Any] | None = None) -> MethodPart:
    if isinstance(method, MethodPart):
        return method
    if isinstance(method, Method):
        own = _as_settings(method)
        if own is not None:
            title = label or LABELS.get(method.name, "")
            return MethodPart(name=method.name, label=title, settings=own)
        token = reference_to(methods.METHODS, method, label=label or method.name)
        return MethodPart(name=token, label=label or method.name)
    name = reference_to(methods.METHODS, method, label=label)
    known = methods.find(name).name
    return MethodPart(
        name=name if MARK in name else known,
        label=label or LABELS.get(known, ""),
        settings=dict(settings or {}),
    )


def _as_settings(method: Method) -> dict[str, Any] | None:
    """The settings that make a method by its name; None for one that was not made so.

    A recipe can then say what it is, and tuning knows where its settings are searched.
    """
    if method.name not in methods.METHODS:
        return None
    make = methods.METHODS[method.name].make
    values = {
        name: value
        for part in (*method.evaluation, method.clipping)
        for name, value in vars(part).items()
    }
    settings = {name: values[name] for name in options_of(make) if name in values}
    try:
        same = facts_of(make(**settings), "") == facts_of(method, "")
        json.dumps(settings)
    except (TypeError, ValueError):
        return None
    return settings if same else None


def _changed(recipe: Recipe, given: Description) -> Recipe:
    """The recipe with what is given in place of its own; epsilon replaces a noise multiplier."""
    replaced = {"epsilon": "noise_multiplier", "epochs": "steps"}
    names = {"batch": "expected_batch_size"}
    budget: dict[str, Any] = recipe.budget.model_dump(mode="json")
    update: dict[str, Any] = {}
    own: list[str] = []
    for name in ("epsilon", "delta", "epochs", "batch", "accountant"):
        if name in given:
            value: Any = given[name]
            if name == "epsilon" and not isinstance(value, int | float):
                update["epsilons"] = tuple(value) if len(value) > 1 else ()
                value = sorted(value)[len(value) // 2]
            field = names.get(name, name)
            budget |= {replaced.get(name, field): None} if name in replaced else {}
            budget[field] = value
            own.append(field)
    fields = recipe.model_dump(mode="json") | {"budget": budget} | update
    for row in fields["methods"]:
        row.update(dict.fromkeys(set(own) & {"epochs", "expected_batch_size", "epsilon"}))
    if "seeds" in given:
        seeds = given["seeds"]
        fields["seeds"] = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if "noise" in given:
        fields["noise"] = given["noise"]
    if "trials" in given:
        fields["tune"]["trials"] = given["trials"]
    if "optimizer" in given or "learning_rate" in given:
        fields["optimizer"] |= _optimizer_change(given, recipe)
        for row in fields["methods"]:
            row.update({"learning_rate": None, "optimizer": None})
    if "method" in given:
        row = row_of(recipe, given["method"]) or _row("", given["method"])
        changed = {
            **row.model_dump(mode="json"),
            "settings": {**row.settings, **given.get("settings", {})},
        }
        changed.update(dict.fromkeys(set(own) & {"epochs", "expected_batch_size", "epsilon"}))
        if "optimizer" in given or "learning_rate" in given:
            changed.update({"learning_rate": None, "optimizer": None})
        fields |= {"methods": [changed], "baseline": None}
    return Recipe.of(fields)


def _optimizer_change(given: Description, recipe: Recipe) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if "optimizer" in given:
        name = reference_to(OPTIMIZERS, given["optimizer"])
        change |= {"name": name} | ({} if name == recipe.optimizer.name else {"options": {}})
    if "learning_rate" in given:
        change["learning_rate"] = given["learning_rate"]
    return change


def row_of(recipe: Recipe, name: Any) -> MethodPart | None:
    """One of a recipe's rows, by title or by the method's name; None if there is none."""
    if not isinstance(name, str):
        return None
    by_name = {_folded(part.name): part for part in reversed(recipe.methods)}
    by_name |= {_folded(part.title): part for part in recipe.methods}
    return by_name.get(_folded(name))


def _folded(name: str) -> str:
    return name.replace("-", "_").lower()
