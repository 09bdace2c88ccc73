"""What private training costs each group (Gradient Misalignment, Eqs. 1 and 2)."""

from __future__ import annotations

from plumbline.fairness import NOT_COVERED, CostByGroup, Estimate
from plumbline.formats import number, points
from plumbline.report import figures as f
from plumbline.report.estimates import ALL, by_method, cell
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Section, Tabs


def section(study: Study) -> Section | None:
    """Lost accuracy and added loss by group, where there are non-private runs to compare with."""
    costs = {t: cost for t in study.titles if (cost := study.row(t).cost) is not None}
    if not costs:
        return None
    lost = _figure(
        study,
        {title: cost.privacy_cost for title, cost in costs.items()},
        "accuracy",
        f"points of {study.main_title} lost",
        f"Points of {study.main_title} lost, by method and group: at zero, privacy costs nothing; "
        "marks of a method far apart mean that it costs one group more.",
    )
    added = _figure(
        study,
        {title: cost.excessive_risk for title, cost in costs.items()},
        "loss",
        "loss added",
        "Loss added, by method and group: zero is no cost.",
    )
    return Section(
        "cost",
        "What it costs, and whom",
        "The difference to the same network trained without privacy, seed by seed.",
        [
            Tabs(
                "Cost",
                {
                    f"{study.metrics[study.main].title} lost": [lost],
                    "Loss added": [added],
                },
            )
        ],
        NOT_COVERED,
        "The privacy cost of a group is the accuracy it loses to private training (Gradient "
        "Misalignment, Eq. 1), its excessive risk the loss it gains (Eq. 2). Pairs of runs share a "
        "seed, so that the split of the data cancels. The gap is the largest difference between "
        "two groups.",
        "docs/fairness.md",
    )


def _figure(
    study: Study, costs: dict[str, CostByGroup], metric: str, title: str, sentence: str
) -> Figure:
    scale, digits = (100.0, 1) if metric == "accuracy" else (1.0, 3)
    series: dict[str, list[Estimate | None]] = {
        group: [cost.by_group.get(group) for cost in costs.values()] for group in study.groups
    } or {ALL: [cost.overall for cost in costs.values()]}
    rows = []
    for place, (method, cost) in enumerate(costs.items()):
        apart = (points if scale == 100 else number)(cost.gap.value, digits=digits)
        cells = [cell(own[place], scale, digits) for own in series.values()]
        rows.append([method, cell(cost.overall, scale, digits), *cells, apart])
    caption = f"{title.capitalize()}, mean ± standard error over seeds"
    return by_method(
        study,
        f"cost-{metric}",
        title.capitalize(),
        sentence,
        title,
        series,
        Grid(["method", "overall", *series, "gap"], rows, caption=caption),
        titles=list(costs),
        scale=scale,
        digits=digits,
        shapes=[f.rule(0.0)],
    )
