"""Whether a network takes the data that a recipe gives it: asked before anything runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable

import torch
from torch.utils._pytree import tree_map

from plumbline.data.base import DATASETS
from plumbline.experiments.loading import load_data
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.models import MODELS
from plumbline.training.without_trace import evaluating

_RECORDS = 2  # a batch of one is a special case for some layers


def pairs(specs: Iterable[RunSpec]) -> dict[str, RunSpec]:
    """One run for each data set and network that the runs have, by the settings of these."""
    found: dict[str, RunSpec] = {}
    for spec in specs:
        parts = [part.model_dump(mode="json") for part in (spec.data, spec.model)]
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
            model = spec.model.build()
    except TypeError as error:  # an option that is not there
        raise RecipeError(str(error)) from error
    x, _ = splits.train.fetch(torch.arange(min(_RECORDS, len(splits.train))))
    try:
        with evaluating(model), torch.no_grad():
            model(x)
    except Exception as error:  # each layer fails in its own way
        shape = tree_map(lambda rows: list(rows.shape[1:]), x)
        raise RecipeError(
            f"The network '{spec.model.name}' cannot take the data set '{spec.data.name}': a "
            f"record has the shape {shape}, on which it fails with: {error}. It takes: "
            f"{_first(MODELS[spec.model.name])} Options in [model] and [data] may help, or another "
            f"network. Those of '{spec.model.name}': {_options(MODELS[spec.model.name])}; of "
            f"'{spec.data.name}': {_options(DATASETS[spec.data.name])}."
        ) from error


def _first(what: object) -> str:
    """The first paragraph of what is said about it."""
    return " ".join((inspect.getdoc(what) or "").partition("\n\n")[0].replace("``", "").split())


def _options(what: object) -> str:
    assert callable(what)
    options = inspect.signature(what).parameters.values()
    return ", ".join(f"{one.name}: {one.annotation} = {one.default!r}" for one in options) or "none"
