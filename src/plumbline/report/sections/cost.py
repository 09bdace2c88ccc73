"""What private training costs each group (paper 004, Eqs. 1 and 2)."""

from __future__ import annotations

from plumbline.fairness import NOT_COVERED, CostByGroup, Estimate
from plumbline.formats import number, points
from plumbline.report import figures as f
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs
from plumbline.report.sections.results import cell, dots


def section(study: Study) -> Section | None:
    """Lost accuracy and added loss by group, where there are non-private runs to compare with."""
    titles = [title for title in study.titles if study.row(title).cost is not None]
    if not titles:
        return None
    lost = {t: cost.privacy_cost for t in titles if (cost := study.row(t).cost) is not None}
    risk = {t: cost.excessive_risk for t in titles if (cost := study.row(t).cost) is not None}
    panels: dict[str, list[Part]] = {
        "Accuracy lost": [_figure(study, lost, "accuracy", "points of accuracy lost", 100.0, 1)],
        "Loss added": [_figure(study, risk, "loss", "loss added", 1.0, 3)],
    }
    return Section(
        "cost",
        "What it costs, and whom",
        "The difference to the same network trained without privacy, seed by seed.",
        [Tabs("Cost", panels)],
        NOT_COVERED,
    )


def _figure(
    study: Study,
    costs: dict[str, CostByGroup],
    metric: str,
    title: str,
    scale: float,
    digits: int,
) -> Figure:
    titles = list(costs)
    groups = study.groups
    series: dict[str, list[Estimate | None]] = {
        group: [costs[t].by_group.get(group) for t in titles] for group in groups
    }
    colours = [f.group_colour(i) for i in range(len(groups))]
    symbols = [f.group_symbol(i) for i in range(len(groups))]
    keys = f.group_keys(groups)
    if not groups:
        series = {"all records": [costs[t].overall for t in titles]}
        colours, symbols, keys = ["@text"], ["circle"], [Key("all records", "@text")]
    rows = []
    for place, method in enumerate(titles):
        gap = costs[method].gap
        apart = (points if scale == 100 else number)(gap.value, digits=digits)
        cells = [cell(own[place], scale, digits) for own in series.values()]
        rows.append([method, cell(costs[method].overall, scale, digits), *cells, apart])
    interval = " Lines are 95% intervals of the mean over seeds." if study.seeds > 1 else ""
    return Figure(
        f"cost-{metric}",
        title.capitalize(),
        f"How many {title}, by method and group: at zero, privacy costs nothing; marks of a method "
        f"far apart mean that it costs one group more.{interval}"
        if metric == "accuracy"
        else f"How much {title}, by method and group: zero is no cost.{interval}",
        dots(series, colours, symbols, scale, f".{digits}f"),
        {
            "xaxis": f.axis(title, side="top"),
            "yaxis": f.categories(titles),
            "margin": f.margins(titles, on_top=True),
            "hovermode": "closest",
            "shapes": [f.rule(0.0)],
        },
        Grid(
            ["method", "overall", *series, "gap"],
            rows,
            caption=f"{title.capitalize()}, mean ± standard error over seeds",
        ),
        keys,
        height=90 + len(titles) * (34 + 18 * len(series)),
    )
