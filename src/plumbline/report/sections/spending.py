"""Epsilon over training: how the budget is spent."""

from __future__ import annotations

from plumbline.formats import tiny
from plumbline.mechanism.rounding import rounded_up
from plumbline.report import figures as f
from plumbline.report.curve_figures import Line, of_methods, over_steps
from plumbline.report.measured import Curve
from plumbline.report.reading import Study
from plumbline.report.section import Section


def section(study: Study) -> Section | None:
    """A line for each method that has a guarantee."""
    titles = [t for t in study.private if any(run.metrics for run in study.runs[t])]
    if not titles:
        return None
    lines = of_methods(study, titles, lambda row: row.get("epsilon"), "metrics")
    budget = study.recipe.budget
    asked_before = study.recipe.data.found is not None  # for which the first step is not at zero
    several = "" if len(titles) < 2 else " Lines of methods that ask the same lie on each other."
    figure = over_steps(
        "spending-epsilon",
        "",
        f"The privacy spent after each step, at delta {tiny(budget.delta)}, by the "
        f"{budget.accountant.upper()} accountant.{several}",
        lines if asked_before else {title: _from_zero(one) for title, one in lines.items()},
        f.axis("ε spent", rangemode="tozero"),
        what="epsilon spent",
        shown=rounded_up,
        hover=".4g",
        wide=True,
        shapes=[f.rule(budget.epsilon, along="y", text="budget")] if budget.epsilon else [],
    )
    most = rounded_up(max(study.row(title).epsilon for title in titles))
    return Section(
        "spending",
        "Epsilon over training",
        f"A run could have stopped earlier for less; at the end ε is {most}.",
        [figure],
        note="Each step asks noisy questions about a random batch, and each is charged before its "
        "answer is used. Methods that ask one question more pay for it here.",
    )


def _from_zero(one: Line) -> Line:
    """The curve from where it starts: no step costs nothing."""
    own = one.curve
    whole = Curve([0, *own.steps], [0.0, *own.mean], [0.0, *own.low], [0.0, *own.high])
    return Line(whole, one.colour, one.dash)
