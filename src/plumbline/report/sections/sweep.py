"""A sweep: the main metric against what was swept, as lines, and as heat maps of two settings."""

from __future__ import annotations

from typing import Any

from plumbline.experiments.recipe import MethodPart
from plumbline.fairness import NOT_COVERED
from plumbline.report import figures as f
from plumbline.report.estimates import cell
from plumbline.report.measured import mean
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

Points = dict[tuple[float, ...], str]


def section(study: Study) -> Section | None:
    """A line for each setting that was swept, and a map for each method with two of them."""
    rows = _rows(study)
    if not rows:
        return None
    names = list(dict.fromkeys(name for swept, _ in rows for name in swept))
    panels: dict[str, list[Part]] = {_shown(name): [_lines(study, name)] for name in names}
    for (swept, base), points in rows.items():
        if len(swept) == 2:
            panels[f"{base}: {_shown(swept[0])} and {_shown(swept[1])}"] = [
                _map(study, base, swept, points)
            ]
    return Section(
        "sweep",
        "What was swept",
        "How good each method is at each value of what the recipe sweeps.",
        [Tabs("Setting", panels)],
        NOT_COVERED,
        "The mean over seeds on the test records. A line has the best over whatever else was "
        "swept; who picks a value from it has looked at the test records.",
    )


def _rows(study: Study) -> dict[tuple[tuple[str, ...], str], Points]:
    """By what was swept and the method's name: the values, to the row's title."""
    found: dict[tuple[tuple[str, ...], str], Points] = {}
    for title in study.titles:
        part = study.part(title)
        if part.swept and part.epsilon is None:
            values = tuple(_value(part, name) for name in part.swept)
            found.setdefault((part.swept, part.base), {})[values] = title
    return found


def _lines(study: Study, name: str) -> Figure:
    metric = study.metrics[study.main]
    traces: list[dict[str, Any]] = []
    table, keys = [], []
    for (swept, base), points in _rows(study).items():
        if name not in swept:
            continue
        best: dict[float, tuple[float, str]] = {}
        for values, title in points.items():
            value, reached = values[swept.index(name)], _reached(study, title)
            best[value] = max(best.get(value, (reached, title)), (reached, title))
        first = next(iter(points.values()))
        tint, xs = f.colour(study, first), sorted(best)
        ys = [metric.scale * best[x][0] for x in xs]
        drawn = f.path(base, xs, ys, tint, f"%{{x:g}}: %{{y:.{metric.digits}f}}")
        traces.append(drawn | {"mode": "lines+markers", "marker": {"color": tint, "size": 8}})
        keys.append(Key(base, tint, "line"))
        table += [
            [
                base,
                f"{x:g}",
                cell(study.row(best[x][1]).seeds.overall[study.main], metric.scale, metric.digits),
            ]
            for x in xs
        ]
    positive = all(x > 0 for trace in traces for x in trace["x"])
    return Figure(
        f"sweep-{name.replace('_', '-')}",
        f"{metric.title} against {_shown(name)}",
        f"{metric.title} on the test records, mean over seeds, at each {_shown(name)}.",
        traces,
        {
            "xaxis": f.axis(_shown(name), type="log" if positive else "linear"),
            "yaxis": f.axis(metric.axis),
            "hovermode": "closest",
        },
        Grid(["method", _shown(name), metric.title], table),
        keys,
        height=380,
    )


def _map(study: Study, base: str, swept: tuple[str, ...], points: Points) -> Figure:
    metric = study.metrics[study.main]
    across, up = (sorted({values[place] for values in points}) for place in (0, 1))
    z = [
        [metric.scale * _reached(study, points[x, y]) if (x, y) in points else None for x in across]
        for y in up
    ]
    xs, ys = [f"{x:g}" for x in across], [f"{y:g}" for y in up]
    number = f"%{{z:.{metric.digits}f}}"
    look = {"showscale": False, "colorscale": [[0, "@surface"], [1, "@c2"]]}
    heat: dict[str, Any] = {"type": "heatmap", "z": z, "texttemplate": number, **look}
    axes = [f.axis(_shown(name), type="category") for name in swept]
    rows = [
        [y, *("" if value is None else f"{value:.{metric.digits}f}" for value in line)]
        for y, line in zip(ys, z, strict=True)
    ]
    return Figure(
        f"sweep-map-{'-'.join(swept).replace('_', '-')}-{study.titles.index(points[min(points)])}",
        f"{metric.title} of {base}",
        f"{metric.title} of {base} at each {_shown(swept[0])} and {_shown(swept[1])}.",
        [f.trace(base, xs, ys, f"%{{x}}, %{{y}}: {number}", **heat)],
        {"xaxis": axes[0], "yaxis": axes[1], "hovermode": "closest"},
        Grid([f"{_shown(swept[1])} \\ {_shown(swept[0])}", *xs], rows),
        height=380,
    )


def _reached(study: Study, title: str) -> float:
    return mean(study.row(title).seeds.overall[study.main]) or 0.0


def _value(part: MethodPart, name: str) -> float:
    value = part.settings.get(name, part.learning_rate)
    assert value is not None  # a sweep has given it
    return float(value)


def _shown(name: str) -> str:
    return name.replace("_", " ")
