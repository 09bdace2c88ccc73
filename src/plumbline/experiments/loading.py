"""The data of a run, loaded once in a process, and a model evaluated on it."""

from __future__ import annotations

import functools
import json
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from plumbline.data import Split, Splits, load
from plumbline.data.base import DATASETS
from plumbline.data.encoding import from_unit_range
from plumbline.data.table_records import OTHER
from plumbline.experiments.files import ENCODING
from plumbline.experiments.objects import OBJECTS, is_object, present
from plumbline.experiments.recipe import DataPart, RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.fairness import GroupReport, NumberOutcomes, Outcomes, evaluate
from plumbline.models import scattering
from plumbline.record_random import Draws
from plumbline.training import Private
from plumbline.without_trace import evaluating


def load_data(spec: RunSpec) -> Splits:
    """The run's data, with the part that is held out in place of the test part."""
    splits = load_part(spec.data, spec.seed)
    if spec.held_out:
        train, test = _apart(splits.train, spec.held_out, f"held out, seed {spec.seed}")
        splits = replace(splits, train=train, test=test, use=None)  # not of the test rows
    if spec.chosen_on:
        train, third = _apart(splits.train, spec.chosen_on, f"third part, seed {spec.seed}")
        splits = replace(splits, train=train, third=third)
    return splits


def load_part(part: DataPart, seed: int) -> Splits:
    """The data of a recipe, split by a seed where the loader splits at all, and features in place
    of images.
    """
    options = {"split_seed": seed, **part.options}
    if part.found is not None:
        options |= {"found": part.found.columns, "noisy_records": part.found.records}
    scales = part.scales if part.features else None
    return _loaded(part.name, json.dumps(options), scales, _state(part))


@functools.lru_cache(maxsize=4)
def _loaded(name: str, options: str, scales: int | None, state: object) -> Splits:
    """Loaded once for the runs of a process that share it; again if the data have changed."""
    what = present(DATASETS, name) if is_object(name) else name
    splits = load(what, **json.loads(options))
    if splits.encoding is not None and splits.train.not_covered:
        splits.train.not_covered += (
            f"{ENCODING}, which holds what is computed from the training records here, and which "
            "the model needs for new rows",
        )
    if scales is None:
        return splits
    train, test = (_scattered(part, scales) for part in (splits.train, splits.test))
    return replace(splits, train=train, test=test)


def _state(part: DataPart) -> object:
    """What tells data of the same name apart: another object, or a file that was written again."""
    if is_object(part.name):
        return id(OBJECTS.get(part.name))
    files = [Path(part.options[name]) for name in ("path", "test") if name in part.options]
    return tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())


def _scattered(part: Split, scales: int) -> Split:
    whole, index = part.origin or (part, None)
    x = scattering.features(whole, scales=scales, cache=cache_folder())
    return Split(x if index is None else x[index], part.y, part.sensitive_features)


def cache_folder() -> Path:
    """Where features are kept: ``PLUMBLINE_CACHE``, or a folder below the user's own cache."""
    return Path(os.environ.get("PLUMBLINE_CACHE", Path.home() / ".cache" / "plumbline"))


def _apart(part: Split, share: float, key: str) -> tuple[Split, Split]:
    """Some of the training records set apart from the others, the same for every method.

    Every record has a coin of its own, so that ``share`` is only what is expected. One record more
    or less changes the side of no other, which the privacy of a selection rests on. A record's name
    is its place in the part, and of a table its place in the file, where rows that lack a value
    take no part; its coin depends on that and the key alone: to remove it is to leave its place
    empty, and the others keep theirs.

    Raises:
        RecipeError: If no record is left on one side.
    """
    count = len(part)
    places = torch.arange(count) if part.places is None else part.places
    held = Draws(places, key).uniform() < share
    if not 0 < int(held.sum()) < count:
        raise RecipeError(
            f"Of {count} training records, a share of {share:g} is to be held out, which leaves no "
            "record on one side. Give more records, or a share nearer to 0.5."
        )
    kept, apart = (part.select(side.nonzero().flatten()) for side in (~held, held))
    if part.public_records is not None:
        kept.public_records = max(1, round(part.public_records * (1 - share)))
        kept.records_noisy = part.records_noisy
    return kept, apart


def evaluate_run(private: Private, splits: Splits, threshold: float | None = None) -> GroupReport:
    """The metrics of a run's model, with its averaged weights where it averages them."""
    with judged_model(private) as model:
        return measure_splits(model, splits, threshold)


def judged_model(private: Private) -> AbstractContextManager[nn.Module]:
    """The model that a run is judged by: with its averaged weights where it averages them."""
    return nullcontext(private.model) if private.averaging is None else private.averaged()


def measure_splits(model: nn.Module, splits: Splits, threshold: float | None = None) -> GroupReport:
    """A model's metrics on the test part of its data."""
    return measure(
        model, splits.test, splits.groups, threshold=threshold, target_range=splits.target_range
    )


def measure(
    model: nn.Module,
    part: Split,
    groups: tuple[str, ...],
    *,
    threshold: float | None = None,
    target_range: tuple[float, float] | None = None,
) -> GroupReport:
    """A model's metrics on a part of the data, by group, in evaluation mode.

    Args:
        model: The model.
        part: The records.
        groups: The groups' names.
        threshold: Of two classes, the probability from which on the second one is predicted.
        target_range: Where the target is a number, its range.
    """
    outcomes: Outcomes | NumberOutcomes
    if target_range is None:
        outcomes = outcomes_of(model, part, threshold)
    else:
        found, true = outputs_of(model, part)
        found, true = found.double().reshape(true.shape), true.double()
        y, guesses = (from_unit_range(one, target_range) for one in (true, found))
        outcomes = NumberOutcomes(y, guesses, (found - true).square())
    features = part.sensitive_features
    values = np.zeros(len(part), dtype=int) if features is None else features.numpy()
    names = dict(enumerate(groups)) if groups and features is not None else {0: "all"}
    # "All others" of a column whose groups were found is worth a line only if it is somebody.
    there = set(values.tolist())
    names = {code: name for code, name in names.items() if code in there or OTHER not in name}
    return evaluate(outcomes, sensitive_features=values, names=names)


def outcomes_of(model: nn.Module, part: Split, threshold: float | None = None) -> Outcomes:
    """A classifier's outcomes on a part of the data, in evaluation mode."""
    return Outcomes.from_logits(*outputs_of(model, part), threshold=threshold)


def outputs_of(model: nn.Module, part: Split) -> tuple[Tensor, Tensor]:
    """What a model says of each record, and what is true, in evaluation mode."""
    outputs, labels = [], []
    with evaluating(model), torch.no_grad():
        for x, y in part.pieces():
            outputs.append(model(x))
            labels.append(y)
    return torch.cat(outputs), torch.cat(labels)
