"""What a page is built of: sections, and in them figures, tabs, tables and paragraphs.

Text in these is plain and is escaped when the page is built; only ``Html`` is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Html:
    """Markup, escaped by whoever made it."""

    markup: str


def command(markup: str) -> str:
    """Markup of something to copy."""
    return (
        f'<div class="command"><pre><code>{markup}</code></pre>'
        '<button type="button" class="copy">Copy</button></div>'
    )


@dataclass(frozen=True)
class Grid:
    """A table of words and numbers.

    Attributes:
        head: The columns' names.
        rows: The cells.
        numeric: From which column on cells are numbers.
        caption: What it shows, for those who cannot see it.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: int = 1
    caption: str = ""


@dataclass(frozen=True)
class Key:
    """An entry of a figure's legend.

    Attributes:
        name: What it says; traces of this ``legendgroup`` belong to it.
        colour: A colour token.
        mark: How it is drawn.
        shown: Whether what belongs to it is shown before the reader asks for it.
    """

    name: str
    colour: str
    mark: Literal[
        "dot", "ring", "square", "diamond", "triangle", "cross", "star", "hexagon",
        "line", "dash", "dots",
    ] = "dot"  # fmt: skip
    shown: bool = True


@dataclass(frozen=True)
class Figure:
    """A figure, with what it shows in one sentence and its numbers in a table.

    Attributes:
        name: Its id in the page.
        title: Its heading; empty where the section's says it all.
        sentence: What it shows.
        traces: Plotly's traces.
        layout: Plotly's layout, added to the page's own.
        data: The numbers that are drawn.
        keys: The legend.
        height: In pixels.
        wide: Whether it takes the whole width even where two would fit.
    """

    name: str
    title: str
    sentence: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    data: Grid
    keys: Sequence[Key] = ()
    height: int = 340
    wide: bool = True


@dataclass(frozen=True)
class Tabs:
    """Parts of which one is shown at a time.

    Attributes:
        label: What is chosen.
        panels: The parts, by the words on the button.
    """

    label: str
    panels: Mapping[str, Sequence[Part]]


Part = Html | Grid | Figure | Tabs


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        name: Its id.
        title: Its heading.
        sentence: What it says or shows.
        parts: What is in it.
        not_covered: Why epsilon does not cover it; None where it does, or where it shows no data.
        note: How it is read: what to know before drawing a conclusion. ``docs/report.md`` has a
            heading of the same title.
        more: The page of the documentation that says more.
    """

    name: str
    title: str
    sentence: str
    parts: Sequence[Part] = field(default_factory=tuple)
    not_covered: str | None = None
    note: str = ""
    more: str = "docs/report.md"
