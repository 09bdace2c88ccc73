"""The metrics of every method, overall and by group, with 95% intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.fairness import NOT_COVERED
from plumbline.fairness.evaluating import BY_NAME, short_title
from plumbline.fairness.remarks import baseline_of
from plumbline.formats import number
from plumbline.mechanism.rounding import rounded_up
from plumbline.report import figures as f
from plumbline.report.estimates import ALL, by_method, cell
from plumbline.report.learning import in_order
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Part, Section, Tabs


def section(study: Study) -> Section | None:
    """A figure for each metric, and the table."""
    if study.single:
        return None  # what it has learned comes first
    seeds = "one seed" if study.seeds == 1 else f"{study.seeds} seeds"
    panels: dict[str, list[Part]] = {
        study.metrics[metric].title: [_figure(study, metric)] for metric in in_order(study)
    }
    return Section(
        "results",
        "How good it is",
        f"How well each method does on the test records, over {seeds}.",
        [Tabs("Metric", panels), _table(study), *study.table_remarks],
        NOT_COVERED,
        "Marks are means over seeds, lines are 95% intervals by Student's t; with few seeds they "
        "are wide, as they should be. A seed splits the data, starts the weights, and draws "
        "batches and noise. The baseline gives every record the class that most have; its balanced "
        "accuracy is that of guessing. The AUC is the chance that a record of the second class is "
        "ranked above one of the first: 0.5 is guessing, whatever the classes' sizes. The loss of "
        "classes is the log loss (cross-entropy).",
    )


def headline(study: Study) -> Figure:
    """The metric that tells methods apart, of all records: what a comparison is about."""
    return _figure(study, in_order(study)[0], "headline", groups=())


def _figure(
    study: Study, metric: str, name: str | None = None, groups: Sequence[str] | None = None
) -> Figure:
    shown, scale, _, digits, *within = study.metrics[metric]
    seeds = {title: study.row(title).seeds for title in study.titles}
    series = {ALL: [own.overall[metric] for own in seeds.values()]} | {
        group: [own.by_group[group][metric] for own in seeds.values()]
        for group in (study.groups if groups is None else groups)
    }
    whom = ", of everyone and of each group" if len(series) > 1 else ""
    rows = [
        [title, *(cell(own[place], scale, digits) for own in series.values())]
        for place, title in enumerate(study.titles)
    ]
    better = "right" if BY_NAME[metric].better == "higher" else "left"
    base = baseline_of(seeds[study.titles[0]].overall) if metric == study.main else None
    rules = [f.rule(scale * base)] if base else []
    line = " The dashed line is one class for all." if base else ""
    return by_method(
        study,
        name or f"results-{metric.replace(' ', '-')}",
        f"{shown} by method",
        f"{shown} on the test records{whom}. Further {better} is better.{line}",
        study.metrics[metric].axis,
        series,
        Grid(["method", *series], rows, caption=f"{shown}, mean ± standard error over seeds"),
        titles=study.titles,
        scale=scale,
        digits=digits,
        within=(within[0], within[1]),
        shapes=rules,
    )


def _table(study: Study) -> Grid:
    groups = study.groups if len(study.groups) <= 3 else []  # more are in the figures' own data
    head = ["method", "ε"]
    head += [f"{short_title(name)} {s.unit}".strip() for name, s in study.metrics.items()]
    head += [*(f"{group} %" for group in groups), "p"]
    tests = {} if study.table.tests is None else study.table.tests.tests
    rows = []
    for title in study.titles:
        row = study.row(title)
        cells = [title, rounded_up(row.epsilon, infinite="∞")]
        cells += [
            cell(row.seeds.overall[name], one.scale, one.digits)
            for name, one in study.metrics.items()
        ]
        cells += [cell(row.seeds.by_group[group][study.main], 100.0, 1) for group in groups]
        p = tests[title].adjusted if title in tests else None
        rows.append([*cells, number(p), f"{row.seconds:.0f}"])
    caption = "Mean ± standard error over seeds."
    if study.table.tests is not None:
        caption += (
            f" p: is its {study.main_title} above that of {study.recipe.baseline}? One-sided "
            f"Wilcoxon test with Holm's correction. {study.table.tests.note}"
        )
    return Grid([*head, "seconds"], rows, caption=caption)
