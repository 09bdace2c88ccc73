"""Epsilon over training: how the budget is spent."""

from __future__ import annotations

from plumbline.mechanism.rounding import rounded_up
from plumbline.report import figures as f
from plumbline.report.measured import Curve, curve
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Section


def section(study: Study) -> Section | None:
    """A line for each method that has a guarantee."""
    curves = {
        title: _from_zero(
            curve([run.metrics for run in study.runs[title]], lambda row: row.get("epsilon"))
        )
        for title in study.private
        if any(run.metrics for run in study.runs[title])
    }
    if not curves:
        return None
    traces = [
        trace
        for title, own in curves.items()
        for trace in f.line(title, own, f.colour(study, title), dash=f.dash(study, title))
    ]
    budget = study.recipe.budget
    shapes = [] if budget.epsilon is None else [f.rule(budget.epsilon, along="y", text="budget")]
    steps = sorted({step for own in curves.values() for step in own.steps})
    rows = []
    for title, own in curves.items():
        spent = dict(zip(own.steps, own.mean, strict=True))
        rows.append([title, *(rounded_up(spent[s]) if s in spent else "–" for s in steps)])
    several = "" if len(curves) < 2 else " Lines of methods that ask the same lie on each other."
    figure = Figure(
        "spending-epsilon",
        "",
        f"The privacy spent after each step, at delta {budget.delta:g}, by the "
        f"{budget.accountant.upper()} accountant.{several}",
        traces,
        {
            "xaxis": f.steps_axis(),
            "yaxis": f.axis("ε spent", rangemode="tozero"),
            "shapes": shapes,
        },
        Grid(["method", *(f"step {step:,}" for step in steps)], rows, caption="Epsilon spent"),
        f.method_keys(study, list(curves)),
    )
    most = rounded_up(max(study.row(title).epsilon for title in curves))
    return Section(
        "spending",
        "Epsilon over training",
        f"A run could have stopped earlier for less; at the end ε is {most}.",
        [figure],
    )


def _from_zero(own: Curve) -> Curve:
    """The curve from where it starts: no step costs nothing."""
    return Curve([0, *own.steps], [0.0, *own.mean], [0.0, *own.low], [0.0, *own.high])
