"""The settings of every method, and the command that repeats it all."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from plumbline.formats import tiny
from plumbline.report.reading import Study
from plumbline.report.section import Grid, Html, Section, command


def section(study: Study) -> Section:
    """The recipe as it can be run again, and the versions it was run with."""
    same = "a run with the same seed on the same versions gives them again."
    if study.recipe.noise == "secure":
        same = "another run draws other noise, and costs the records again."
    return Section(
        "settings",
        "Settings, and how to repeat this",
        f"Everything that decides these numbers; {same}",
        [Html(_recipe(study)), _methods(study), _common(study)],
        note="The recipe names everything that decides the result. Finished runs are read, not "
        "repeated, when the command runs again in the same folder.",
    )


def _recipe(study: Study) -> str:
    file = f"{study.recipe.name}.toml"
    verb = "train" if study.single else "compare"
    return (
        f"<p>Save this recipe as <code>{html.escape(file)}</code>, then run:</p>"
        f"{command(html.escape(f'plumbline {verb} {file}'))}"
        f'<details class="recipe"><summary>{html.escape(file)}</summary>'
        f"{command(html.escape(study.recipe.toml()))}</details>"
    )


def _methods(study: Study) -> Grid:
    origins = {"given": "the recipe", "paper": "the paper", "tuned": "tuning"}
    origins["selected"] = "private selection"
    rows = []
    for title in study.titles:
        part, spec = study.part(title), study.spec(title)
        rate, optimizer = f"{spec.optimizer.learning_rate:g}", spec.optimizer.name
        own = written(part.settings) or "–"
        rows.append([title, part.name, origins[part.origin], rate, optimizer, own])
    head = ["row", "method", "settings from", "learning rate", "optimizer", "settings"]
    return Grid(head, rows, numeric=99, caption="The methods' settings")


def _common(study: Study) -> Grid:
    recipe = study.recipe
    budget = recipe.budget
    spent = (
        f"ε = {budget.epsilon:g}"
        if budget.epsilon is not None
        else f"noise multiplier {budget.noise_multiplier:g}"
    )
    length = f"{budget.steps:,} steps" if budget.steps else f"{budget.epochs:g} epochs"
    rows = [
        ["data", recipe.data.title],
        *([name, _plain(value)] for name, value in recipe.data.options.items() if name != "path"),
        ["network", _named(recipe.model.name, recipe.model.options)],
        ["budget", f"{spent}, δ = {tiny(budget.delta)}, {length}"],
        ["sampling rate", f"{budget.sampling_rate:g}"]
        if budget.sampling_rate is not None
        else ["expected batch size", f"{budget.expected_batch_size:,}"],
        ["accountant", f"{budget.accountant.upper()}, {budget.relation.replace('_', '/')}"],
        ["seeds", ", ".join(map(str, recipe.seeds))],
        ["noise", recipe.noise],
    ]
    versions = next(iter(study.runs.values()))[0].versions
    rows += [[name, str(version)] for name, version in versions.items()]
    return Grid(["setting", "value"], rows, numeric=99, caption="What all methods share")


def _plain(value: Any) -> str:
    """An option of the data as people write it: "age: 0, 100; visits: 0, 8"."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_plain(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _named(name: str, options: Mapping[str, Any]) -> str:
    return f"{name} ({written(options)})" if options else name


def written(settings: Mapping[str, Any]) -> str:
    """Settings in words: "clip = 0.5, views = 4"."""
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in settings.items()
    )
