"""How figures look: colours that colour-blind readers can tell apart, axes, marks.

Colours are tokens (``@c1``, ``@text``, ``@c1/20`` for one fifth of its strength) that the page
replaces by those of its light or dark theme. They stand only where a colour does, so that no name a
user gave is taken for one. c1 to c7 are those of Okabe and Ito (2008).
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import Any

from plumbline.report.measured import Curve
from plumbline.report.reading import Study
from plumbline.report.section import Key

FREE = "@muted"
LABEL = 16
"""How many characters of a name fit beside a figure on a phone."""

_ORDER = ("@c6", "@c5", "@c3", "@c1", "@c2", "@c7", "@c4")
_GROUPS = ("@c5", "@c1", "@c3", "@c7", "@c2", "@c6", "@c4")
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "hexagon")


def label(name: str, width: int = LABEL) -> str:
    """A user's name as plotly's text: escaped, and broken into short lines."""
    return "<br>".join(html.escape(line) for line in _lines(name, width))


def _lines(name: str, width: int) -> list[str]:
    return textwrap.wrap(name, width) or [name]


def colour(study: Study, title: str) -> str:
    """A method's colour, the same in every figure; rows of one method share it."""
    if study.is_free(title):
        return FREE
    bases = list(dict.fromkeys(study.base(one) for one in study.titles if not study.is_free(one)))
    return _ORDER[bases.index(study.base(title)) % len(_ORDER)]


def is_second(study: Study, title: str) -> bool:
    """Whether it must be told from another row of its colour: the paper's beside the tuned."""
    shared = [one for one in study.titles if colour(study, one) == colour(study, title)]
    if any(study.part(one).origin == "tuned" for one in shared):
        return study.part(title).origin != "tuned"
    return title != shared[-1]


def dash(study: Study, title: str) -> str:
    """A method's line: dashed for the paper's settings where the tuned ones are there too."""
    return "dash" if is_second(study, title) else "solid"


def method_keys(study: Study, titles: Sequence[str]) -> list[Key]:
    """The legend of methods' lines."""
    return [Key(t, colour(study, t), "dash" if is_second(study, t) else "line") for t in titles]


def group_colour(place: int) -> str:
    """The colour of a group, by its place."""
    return _GROUPS[place % len(_GROUPS)]


def group_symbol(place: int) -> str:
    """The mark of a group, by its place; groups of one colour have different marks."""
    return _SYMBOLS[(place + place // len(_GROUPS)) % len(_SYMBOLS)]


def group_dash(place: int) -> str:
    """The line of a group, by its place: groups of one colour have different lines."""
    return _DASHES[place // len(_GROUPS) % len(_DASHES)]


def group_keys(groups: Sequence[str]) -> list[Key]:
    """The legend of groups."""
    marks: dict[str, Any] = {"circle": "dot", "triangle-up": "triangle"}
    symbols: list[Any] = [group_symbol(place) for place in range(len(groups))]
    return [
        Key(group, group_colour(place), marks.get(symbol, symbol))
        for place, (group, symbol) in enumerate(zip(groups, symbols, strict=True))
    ]


def offsets(names: Sequence[str]) -> dict[str, float]:
    """How far below or above a method's place each mark stands, for marks of several names."""
    gap = min(0.22, 0.66 / max(1, len(names)))
    return {name: gap * (place - (len(names) - 1) / 2) for place, name in enumerate(names)}


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """An axis of the page's look, without what takes plotly a second layout.

    That is automatic margins, and looking for labels that reach over the edge.
    """
    return {
        "title": {"text": title, "font": {"size": 13}},
        "gridcolor": "@grid",
        "linecolor": "@line",
        "zeroline": False,
        "ticks": "",
        "fixedrange": True,
        "ticklabeloverflow": "allow",
        **options,
    }


def by_name(titles: Sequence[str], across: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The layout of a figure whose vertical axis has names, the first on top, at 0, 1, 2...

    ``across`` is the horizontal axis.
    """
    names = axis(
        tickvals=list(range(len(titles))),
        ticktext=[label(title) for title in titles],
        range=[len(titles) - 0.45, -0.55],
        showgrid=False,
    )
    longest = max(len(row) for title in titles for row in _lines(title, LABEL))
    ends = {"t": 52, "b": 10} if across.get("side") == "top" else {"t": 10, "b": 46}
    margin = {"l": 16 + round(7.4 * longest), "r": 16, **ends}
    return {"xaxis": across, "yaxis": names, "margin": margin, "hovermode": "closest", **more}


def trace(name: str, x: Sequence[Any], y: Sequence[Any], hover: str, **more: Any) -> dict[str, Any]:
    """What a trace of a name has, whatever its kind; ``hover`` is what the pointer shows."""
    shown = {"name": label(name, 40), "legendgroup": name, "hovertemplate": hover}
    return {"type": "scatter", "x": list(x), "y": list(y), **shown, **more}


def marks(
    name: str, x: Sequence[Any], y: Sequence[Any], tint: str, hover: str, **marker: Any
) -> dict[str, Any]:
    """Points."""
    look = {"color": tint, "size": 11, **marker}
    return trace(name, x, y, hover, mode="markers", marker=look)


def path(
    name: str, x: Sequence[Any], y: Sequence[Any], tint: str, hover: str, **line: Any
) -> dict[str, Any]:
    """A line through points."""
    return trace(name, x, y, hover, mode="lines", line={"color": tint, "width": 2, **line})


def bars(
    name: str, x: Sequence[Any], y: Sequence[Any], tint: str, hover: str, **more: Any
) -> dict[str, Any]:
    """Bars."""
    return trace(name, x, y, hover, **{"type": "bar", "marker": {"color": tint}, **more})


def band(
    steps: Sequence[float], low: Sequence[float], high: Sequence[float], fill: str, name: str = ""
) -> dict[str, Any]:
    """The area between two curves over the same steps."""
    x, y = [*steps, *reversed(steps)], [*high, *reversed(low)]
    look = {"fill": "toself", "fillcolor": fill, "hoverinfo": "skip"}
    return {**path(name, x, y, fill, "", width=0), **look}


def line(
    name: str, curve: Curve, colour: str, *, dash: str = "solid", hover: str = ".4g"
) -> list[dict[str, Any]]:
    """A curve: its mean as a line, the range over seeds as a band where there is one."""
    drawn = path(name, curve.steps, curve.mean, colour, f"%{{y:{hover}}}", width=2.5, dash=dash)
    if len(curve.steps) < 12:
        drawn |= {"mode": "lines+markers", "marker": {"color": colour, "size": 6}}
    if all(low == high for low, high in zip(curve.low, curve.high, strict=True)):
        return [drawn]
    return [band(curve.steps, curve.low, curve.high, f"{colour}/15", name), drawn]


def rule(value: float, *, along: str = "x", text: str = "") -> dict[str, Any]:
    """A dashed line at a value of one axis, with words beside it."""
    other = "y" if along == "x" else "x"
    shape: dict[str, Any] = {
        "type": "line",
        f"{along}0": value,
        f"{along}1": value,
        f"{other}0": 0,
        f"{other}1": 1,
        f"{other}ref": "paper",
        "line": {"color": "@text", "width": 1.5, "dash": "dash"},
    }
    if text:
        shape["label"] = {
            "text": text,
            "textposition": "end",
            "textangle": 0,
            "xanchor": "left" if along == "x" else "right",
            "font": {"color": "@text", "size": 12},
        }
    return shape


def log_axis(title: str, dtick: str | int = "D2") -> dict[str, Any]:
    """A logarithmic axis, with labels at 1, 2 and 5; with ``dtick=1`` at powers of ten only."""
    return axis(title, type="log", dtick=dtick, exponentformat="power")


def steps_axis(title: str = "step", **options: Any) -> dict[str, Any]:
    """A horizontal axis of steps, or of the share of a run."""
    return axis(title, rangemode="tozero", **options)
