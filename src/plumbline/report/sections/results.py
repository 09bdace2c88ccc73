"""Accuracy and loss of every method, overall and by group, with 95% intervals over seeds."""

from __future__ import annotations

import math

from plumbline.fairness import NOT_COVERED
from plumbline.formats import number
from plumbline.mechanism.rounding import rounded_up
from plumbline.report.estimates import ALL, by_method, cell
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Part, Section, Tabs

_METRICS = {"accuracy": ("Accuracy", 100.0, "%", 1), "loss": ("Loss", 1.0, "", 3)}


def section(study: Study) -> Section:
    """A figure for accuracy, one for loss, and the table."""
    seeds = "one seed" if study.seeds == 1 else f"{study.seeds} seeds"
    panels: dict[str, list[Part]] = {
        shown: [_figure(study, metric)] for metric, (shown, *_) in _METRICS.items()
    }
    return Section(
        "results",
        "Accuracy and loss",
        f"How well each method does on the test records, over {seeds}.",
        [Tabs("Metric", panels), _table(study)],
        NOT_COVERED,
        "Marks are means over seeds, lines are 95% intervals by Student's t; with few seeds they "
        "are wide, as they should be. A seed splits the data, starts the weights, and draws "
        "batches and noise.",
    )


def _figure(study: Study, metric: str) -> Figure:
    shown, scale, unit, digits = _METRICS[metric]
    seeds = {title: study.row(title).seeds for title in study.titles}
    series = {ALL: [own.overall[metric] for own in seeds.values()]} | {
        group: [own.by_group[group][metric] for own in seeds.values()] for group in study.groups
    }
    rows = [
        [title, *(cell(own[place], scale, digits) for own in series.values())]
        for place, title in enumerate(study.titles)
    ]
    better = "right" if metric == "accuracy" else "left"
    return by_method(
        study,
        f"results-{metric}",
        f"{shown} by method",
        f"{shown} on the test records, of everyone and of each group. Further {better} is better.",
        f"{shown.lower()}{f' ({unit})' if unit else ''}",
        series,
        Grid(["method", *series], rows, caption=f"{shown}, mean ± standard error over seeds"),
        titles=study.titles,
        scale=scale,
        digits=digits,
        most=100.0 if metric == "accuracy" else math.inf,
    )


def _table(study: Study) -> Grid:
    groups = study.groups if len(study.groups) <= 3 else []  # more are in the figures' own data
    head = ["method", "ε", "accuracy %", "loss", *(f"{group} %" for group in groups), "p"]
    tests = {} if study.table.tests is None else study.table.tests.tests
    rows = []
    for title in study.titles:
        row = study.row(title)
        cells = [title, rounded_up(row.epsilon, infinite="∞")]
        cells += [cell(row.seeds.overall[m], s, d) for m, (_, s, _, d) in _METRICS.items()]
        cells += [cell(row.seeds.by_group[group]["accuracy"], 100.0, 1) for group in groups]
        p = tests[title].adjusted if title in tests else None
        rows.append([*cells, number(p), f"{row.seconds:.0f}"])
    caption = "Mean ± standard error over seeds."
    if study.table.tests is not None:
        caption += (
            f" p: is it more accurate than {study.recipe.baseline}? One-sided Wilcoxon test with "
            f"Holm's correction. {study.table.tests.note}"
        )
    return Grid([*head, "seconds"], rows, caption=caption)
