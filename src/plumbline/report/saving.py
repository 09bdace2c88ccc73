"""A figure of the page in a file of its own: ``save(figure, "bias.svg")``.

It is drawn in the light theme, with a title and a legend, which on the page are not plotly's. The
page's own buttons do the same in the browser, from what ``saved`` adds to the figure.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from plotly import graph_objects

from plumbline.registry import UnknownPart, unknown
from plumbline.report.figures import label
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Key, Part, Tabs
from plumbline.report.sections import SECTIONS, above_the_fold

KINDS = (".html", ".svg", ".png")
WIDTH, TOP = 900, 40
_TOKEN = re.compile(r"@([a-z][a-z0-9]*)(?:/(\d+))?$")
_SYMBOLS = {"dot": "circle", "ring": "circle-open", "triangle": "triangle-up"}
_DASHES = {"line": "solid", "dash": "dash", "dots": "dot"}


def figure_names(study: Study) -> list[str]:
    """The names of the page's figures, in its order."""
    return list(_figures(study))


def figure(study: Study, name: str) -> Figure:
    """A figure of the page, by its name.

    Raises:
        UnknownPart: With the nearest name, if the page has no such figure.
    """
    found = _figures(study)
    if name not in found:
        raise UnknownPart(unknown("figure", name, list(found)))
    return found[name]


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure as ``.html``, which needs nothing else, or as ``.svg`` or ``.png``.

    Raises:
        ValueError: If the file's name ends otherwise.
        RuntimeError: For an image, if plotly's exporter is not installed.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in KINDS:
        raise ValueError(f"The file is {target.name!r}; its name must end in {', '.join(KINDS)}.")
    drawn = graph_objects.Figure(light(figure))
    if kind == ".html":
        target.write_text(drawn.to_html(include_plotlyjs=True), encoding="utf-8")
        return target
    if importlib.util.find_spec("kaleido") is None:
        raise RuntimeError(
            f"Writing {kind} files needs plotly's exporter, the package 'kaleido', and a chromium: "
            "`pip install kaleido`. Or save the figure as .html, or from the page with its buttons."
        )
    drawn.write_image(target)
    return target


def saved(figure: Figure) -> dict[str, Any]:
    """What a figure has beside its own data where it stands alone: a legend, a title, a size."""
    several = figure.keys if len(figure.keys) > 1 else ()
    return {
        "data": [_entry(key) for key in several],
        "names": [key.name for key in several],
        "layout": {
            "title": {
                "text": label(figure.title or figure.sentence.partition(".")[0], 80),
                "x": 0.02,
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"t": 14},
                "font": {"size": 16},
            },
            "showlegend": bool(several),
            "legend": {"x": 1.02, "y": 1, "font": {"size": 13}},
            "paper_bgcolor": "@surface",
            "plot_bgcolor": "@surface",
            "width": WIDTH,
            "height": figure.height + TOP,
        },
        "top": TOP,
    }


def light(figure: Figure) -> dict[str, Any]:
    """A figure by itself as plotly takes it, in the colours of the light theme."""
    beside = saved(figure)
    own: dict[str, Any] = {
        "font": {"family": "sans-serif", "size": 13, "color": "@text"},
        "margin": {"l": 66, "r": 14, "b": 48},
        **figure.layout,
        **beside["layout"],
    }
    own["margin"] = {**own["margin"], "t": own["margin"].get("t", 14) + TOP}
    traces = [{**trace, "showlegend": False} for trace in figure.traces]
    painted: dict[str, Any] = _painted({"data": [*traces, *beside["data"]], "layout": own})
    return painted


def _figures(study: Study) -> dict[str, Figure]:
    sections = [section for make in SECTIONS if (section := make(study)) is not None]
    _, first = above_the_fold(study)
    parts = [*first, *(part for section in sections for part in section.parts)]
    return {one.name: one for part in parts for one in _within(part)}


def _within(part: Part) -> list[Figure]:
    if isinstance(part, Tabs):
        return [one for own in part.panels.values() for inner in own for one in _within(inner)]
    return [part] if isinstance(part, Figure) else []


def _entry(key: Key) -> dict[str, Any]:
    """A trace of nothing, which stands for the key in the legend."""
    dash = _DASHES.get(key.mark)
    symbol = None if dash else _SYMBOLS.get(key.mark, key.mark)
    return {
        "type": "scatter",
        "mode": "markers" if dash is None else "lines",
        "x": [None],
        "y": [None],
        "name": label(key.name, 60),
        "showlegend": True,
        "hoverinfo": "skip",
        "line": {"color": key.colour, "width": 2.5, "dash": dash},
        "marker": {"color": key.colour, "size": 10, "symbol": symbol},
    }


def _painted(value: Any, key: str = "") -> Any:
    """The same with the theme's colours, and only where a colour stands."""
    if isinstance(value, str):
        return _colour(value) if key.endswith("color") else value
    if key == "colorscale":
        return [[place, _colour(tint)] for place, tint in value]
    if isinstance(value, Mapping):
        return {name: _painted(part, name) for name, part in value.items()}
    return [_painted(part, key) for part in value] if isinstance(value, list) else value


def _colour(token: str) -> str:
    found = _TOKEN.match(token)
    if not found:
        return token
    tint = _light()[found[1]]
    if found[2] is None:
        return tint
    red, green, blue = (int(tint[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{int(found[2]) / 100:g})"


@cache
def _light() -> dict[str, str]:
    """The colours of the page's light theme, from its style sheet."""
    sheet = resources.files("plumbline.report").joinpath("page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([a-z][a-z0-9]*): (#[0-9a-f]{6});", sheet.partition("}")[0]))
