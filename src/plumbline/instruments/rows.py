"""From methods, as people name or make them, to the rows of a recipe.

A method is a name, an object, a function, or a clipping or evaluation rule of one's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plumbline import methods
from plumbline.clipping import Clipping, Flat
from plumbline.evaluation import Evaluation
from plumbline.experiments.objects import is_object, reference_to
from plumbline.experiments.recipe import MethodPart, ModelPart, Recipe, RecipeError
from plumbline.methods import Method
from plumbline.registry import MARK, options_of
from plumbline.training.run_identity import facts_of

if TYPE_CHECKING:
    from plumbline.instruments.describing import Description

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


def rows_of(given: Description, groups: bool, *, linear: bool) -> tuple[MethodPart, ...]:
    """The rows that a description asks for, or the usual ones.

    Args:
        given: The description.
        groups: Whether the data have groups.
        linear: Whether a linear model can be one of them.
    """
    rows = _chosen(given, groups, linear=linear)
    if "bands" not in given:
        return rows
    return tuple(MethodPart.model_validate(row) for row in correlated(rows, given["bands"]))


def row_named(recipe: Recipe, method: Any) -> MethodPart:
    """One of a recipe's rows by title or by the method's name; the first private one if None.

    Raises:
        RecipeError: If it has none of that name.
    """
    if method is None:
        private = [row for row in recipe.methods if row.private]
        return (private or list(recipe.methods))[0]
    row = row_in(recipe, method)
    if row is None:
        names = ", ".join(one.title for one in recipe.methods)
        raise RecipeError(f"'{recipe.name}' has no method {method!r}; it has {names}.")
    return row


def row_in(recipe: Recipe, method: Any) -> MethodPart | None:
    """One of a recipe's rows by title or by the method's name, or the row that is given."""
    if isinstance(method, str):
        by_name = {_folded(part.name): part for part in reversed(recipe.methods)}
        by_name |= {_folded(part.title): part for part in recipe.methods}
        return by_name.get(_folded(method))
    return method if isinstance(method, MethodPart) else None


def row_for(label: str, method: Any, settings: Mapping[str, Any] | None = None) -> MethodPart:
    """The row of a method.

    Args:
        label: What to call it; by default as its kind is called.
        method: The method.
        settings: Of one that is named.
    """
    if isinstance(method, MethodPart):
        return method
    if isinstance(method, Clipping | Evaluation):
        label = label or type(method).__name__
        rules = (method,) if isinstance(method, Evaluation) else ()
        own = method if isinstance(method, Clipping) else Flat(1.0)
        method = methods.compose(evaluation=rules, clipping=own)
    if isinstance(method, Method):
        found = _as_settings(method)
        if found is not None:
            title = label or LABELS.get(method.name, "")
            return MethodPart(name=method.name, label=title, settings=found)
        token = reference_to(methods.METHODS, method, label=label or method.name)
        return MethodPart(name=token, label=label or method.name)
    name = reference_to(methods.METHODS, method, label=label)
    if is_object(name):  # a function or class that no module has
        return row_for(label or method.__name__, method(**(settings or {})))
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


def _chosen(given: Description, groups: bool, *, linear: bool) -> tuple[MethodPart, ...]:
    if "method" in given:
        return (row_for("", given["method"], given.get("settings", {})),)
    if "methods" in given:
        chosen = given["methods"]
        items = chosen.items() if isinstance(chosen, Mapping) else [("", one) for one in chosen]
        return tuple(row_for(label, one) for label, one in items)
    names = [name for name in LABELS if groups or name != "dpsgd_f"]
    rows = [MethodPart(name=name, label=LABELS[name]) for name in names]
    if linear and "model" not in given:
        rows.append(MethodPart(name="dpsgd", label=LINEAR, model=ModelPart(name="linear")))
    return tuple(rows)


def correlated(rows: Sequence[MethodPart], bands: int) -> list[dict[str, Any]]:
    """The fields of rows, with correlated noise for those that have a guarantee.

    Where none has one, the first to be built says that it cannot have it.
    """
    baselines = [row for row in rows if not row.private]
    left_out = baselines if len(baselines) < len(rows) else []
    return [
        row.model_dump(mode="json")
        | {"noise": None if bands == 1 or row in left_out else {"bands": bands}}
        for row in rows
    ]


def _folded(name: str) -> str:
    return name.replace("-", "_").lower()
