"""Whether a network and a method can take the data of a run: asked before anything is charged."""

from __future__ import annotations

import json

import torch
from torch import nn
from torch.utils._pytree import tree_map

from plumbline.auditing.admission import admit
from plumbline.data import Splits
from plumbline.experiments.deciding import check_decision
from plumbline.experiments.loading import load_data
from plumbline.experiments.objects import found
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.models import MODELS
from plumbline.record_errors import is_out_of_range
from plumbline.registry import options_of
from plumbline.without_trace import evaluating

_RECORDS = 2  # a batch of one is a special case for some layers


def parts_of(spec: RunSpec) -> str:
    """What decides whether a run's parts fit: runs of which it is the same need one check."""
    parts = (spec.data, spec.model, spec.method)
    return json.dumps([part.model_dump(mode="json") for part in parts])


def check_fits(spec: RunSpec, splits: Splits | None = None) -> None:
    """Gives two records to the network, and builds the method.

    Args:
        spec: The run.
        splits: Records to give it in place of the run's own.

    Raises:
        RecipeError: If it cannot take them, with their shape and the options that it has; if one of
            the parts has no such option; if the method needs groups and the data have none.
        NotAdmitted: If the method is from outside, and moves more than it declares.
    """
    try:
        splits = load_data(spec) if splits is None else splits
        with torch.random.fork_rng(devices=[]):
            model = spec.build_model(splits)
    except TypeError as error:  # an option that is not there
        raise RecipeError(str(error)) from error
    check_decision(spec.recipe, splits.classes)
    x, _ = splits.train.fetch(torch.arange(min(_RECORDS, len(splits.train))))
    try:
        with evaluating(model), torch.no_grad():
            model(x)
    except Exception as error:  # each layer fails in its own way
        if is_out_of_range(error):  # torch's words would quote the number
            reason = "a number of a record is out of range where it is looked up"
        else:
            reason = str(error)
        shape = tree_map(lambda rows: list(rows.shape[1:]), x)
        raise RecipeError(
            f"The network '{spec.model.name}' cannot take the data '{spec.data.title}': a record "
            f"has the shape {shape}, on which it fails with: {reason}."
            f"{_options(spec.model.name)}"
        ) from None
    try:
        method = spec.build_method(len(splits.groups))
    except TypeError as error:  # a setting that is missing
        raise RecipeError(f"The method '{spec.method.name}' cannot be built: {error}.") from error
    if method.needs_groups and not splits.groups:
        raise RecipeError(
            f"The method '{spec.method.name}' treats groups differently, and the data have none: "
            "name the column of the groups (sensitive, --sensitive COLUMN)."
        )
    admit(method)


def _options(name: str) -> str:
    """The options of a network, by which it may fit after all."""
    make = found(MODELS, name)
    if not callable(make) or isinstance(make, nn.Module):
        return ""
    options = options_of(make).values()
    listed = (f"{o.name}" if o.default is o.empty else f"{o.name} = {o.default!r}" for o in options)
    return f" The network's options: {', '.join(listed) or 'none'}."
