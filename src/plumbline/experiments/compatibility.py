"""Whether a network and a method can take the data of a run: asked before anything is charged."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable

import torch
from torch.utils._pytree import tree_map

from plumbline.data import Splits
from plumbline.data.base import DATASETS
from plumbline.experiments.loading import load_data
from plumbline.experiments.objects import found
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.models import MODELS
from plumbline.training.without_trace import evaluating

_RECORDS = 2  # a batch of one is a special case for some layers


def pairs(specs: Iterable[RunSpec]) -> dict[str, RunSpec]:
    """One run for each data set, network and method that the runs have, by their settings."""
    found: dict[str, RunSpec] = {}
    for spec in specs:
        parts = [part.model_dump(mode="json") for part in (spec.data, spec.model, spec.method)]
        found.setdefault(json.dumps(parts), spec)
    return found


def check_fits(spec: RunSpec) -> None:
    """Gives two records to the network.

    Raises:
        RecipeError: If it cannot take them, with their shape and what it says that it takes; or if
            one of the two has no such option.
    """
    try:
        splits = load_data(spec)
        with torch.random.fork_rng(devices=[]):
            model = spec.build_model(splits)
    except TypeError as error:  # an option that is not there
        raise RecipeError(str(error)) from error
    x, _ = splits.train.fetch(torch.arange(min(_RECORDS, len(splits.train))))
    try:
        with evaluating(model), torch.no_grad():
            model(x)
    except Exception as error:  # each layer fails in its own way
        shape = tree_map(lambda rows: list(rows.shape[1:]), x)
        raise RecipeError(
            f"The network '{spec.model.name}' cannot take the data '{spec.data.title}': a record "
            f"has the shape {shape}, on which it fails with: {error}."
            + _told("network", spec.model.name, found(MODELS, spec.model.name))
            + _told("data set", spec.data.name, found(DATASETS, spec.data.name))
        ) from error
    require_usable(spec, splits)


def require_usable(spec: RunSpec, splits: Splits) -> None:
    """Refuses a method that the data are not for.

    Raises:
        RecipeError: If it needs groups and the data have none, or one of its settings is missing.
    """
    try:
        method = spec.build_method(len(splits.groups))
    except TypeError as error:
        raise RecipeError(f"The method '{spec.method.name}' cannot be built: {error}.") from error
    if method.needs_groups and not splits.groups:
        raise RecipeError(
            f"The method '{spec.method.name}' treats groups differently, and the data have none: "
            "name the column of the groups (sensitive, --sensitive COLUMN)."
        )


def _told(kind: str, name: str, what: object) -> str:
    """What a network or data set says of itself, and its options."""
    if not callable(what):
        return ""
    about = " ".join((inspect.getdoc(what) or "").partition("\n\n")[0].replace("``", "").split())
    options = inspect.signature(what).parameters.values()
    listed = ", ".join(f"{one.name}: {one.annotation} = {one.default!r}" for one in options)
    return f" The {kind} '{name}': {about} Its options: {listed or 'none'}."
