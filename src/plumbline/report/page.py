"""The page: sections as HTML, everything it needs inside, and nothing fetched.

Every name and text is escaped here, in markup and in the figures' JSON. A policy in the page's head
forbids the browser to load anything at all, and to run any script but the page's own, by their
hashes: a name that slipped through unescaped would still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from plumbline.diagnostics import NOT_COVERED
from plumbline.experiments.files import make_folder, write_text
from plumbline.experiments.run_spec import only_study
from plumbline.report import verdict
from plumbline.report.bundle import plotly
from plumbline.report.next_steps import next_steps
from plumbline.report.reading import Study, read
from plumbline.report.saving import saved
from plumbline.report.section import Figure, Grid, Html, Key, Part, Section, Tabs, command
from plumbline.report.sections import SECTIONS, above_the_fold
from plumbline.report.tiles import tiles_of

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Cpath "
    "d='M16 2v15' stroke='%230072B2' stroke-width='3'/%3E%3Cpath d='M10 17h12l-6 13z' "
    "fill='%23D55E00'/%3E%3C/svg%3E"
)
VERDICT = Section(
    "verdict",
    "The verdict",
    "",
    note="Each sentence repeats the numbers it rests on. The cost of privacy is the accuracy of "
    "the non-private run minus that of the private one, seed by seed (Gradient Misalignment, "
    "Eq. 1). The share that other settings win back compares two rows of the same method. What "
    "clipping did is the median over the readings; its causes and thresholds are those of "
    "plumbline.diagnostics.verdict.",
    more="docs/clipping-or-noise.md",
)
FILE = "report.html"


def write(folder: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Writes the page of a comparison or a run, and returns where.

    Args:
        folder: As ``compare`` or ``train`` left it behind.
        path: Where to; ``report.html`` in the folder by default.

    Raises:
        ValueError: If there is no finished run in the folder.
        FileError: If the page cannot be written; says what to do.
    """
    home = only_study(Path(folder))
    text = page(read(home))
    target = home / FILE if path is None else Path(path)
    make_folder(target.parent)
    write_text(target, text)
    return target


def page(study: Study) -> str:
    """The whole page."""
    sections = [section for make in SECTIONS if (section := make(study)) is not None]
    figures: dict[str, Any] = {}
    hero = _hero(study, figures)
    body = "".join(_section(section, figures) for section in sections)
    heads = [(one.name, one.title) for one in (VERDICT, *sections)]
    kinds = {trace["type"] for figure in figures.values() for trace in figure["data"]}
    title = html.escape(study.recipe.name)
    theme, library, behaviour = scripts = (_asset("theme.js"), plotly(kinds), _asset("page.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Plumbline</title>
<link rel="icon" href="{_ICON}">
<style>{_asset("page.css")}</style>
<script>{theme}</script>
</head>
<body>
<a class="skip" href="#verdict">To the verdict</a>
<header class="bar">
<span class="brand">{_MARK}<span>Plumbline</span></span>
<details class="menu"><summary>Contents</summary>{_contents(heads)}</details>
<button type="button" id="theme" aria-label="Change between light and dark">◐</button>
</header>
<div class="frame">
<nav class="side" aria-label="Contents">{_contents(heads)}</nav>
<main>
{hero}
{body}
{_notes([VERDICT, *sections])}
<footer><p>Made by Plumbline from the runs in its folder. Nothing on this page was fetched, and
nothing is sent.</p></footer>
</main>
</div>
<script type="application/json" id="figures">{script_json(figures)}</script>
<script>{library}</script>
<script>{behaviour}</script>
</body>
</html>
"""


def policy(scripts: Iterable[str]) -> str:
    """The content security policy of a page with these scripts and no others.

    No ``on...`` attribute and no ``javascript:`` link runs, and nothing is loaded. Styles are free:
    plotly sets them.
    """
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: no character of it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


_HYPHENED = re.compile(r"(?<!\S)(?=\S{3,24}(?!\S))\S*-\S+")
_MARK = (
    '<svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true"><path d="M16 2v15" '
    'class="line"/><path d="M10 17h12l-6 13z" class="bob"/></svg>'
)


def _asset(name: str) -> str:
    return resources.files("plumbline.report").joinpath(name).read_text(encoding="utf-8")


def _contents(heads: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="#{name}">{html.escape(title)}</a></li>' for name, title in heads)
    return f"<ol>{items}</ol>"


def _hero(study: Study, figures: dict[str, Any]) -> str:
    """The title, what was learned in a sentence, a few numbers, and a figure or two."""
    recipe = study.recipe
    target = recipe.data.options.get("target")
    what = recipe.data.title if target is None else f"{target} of {recipe.data.title}"
    facts = f"{'One run' if study.single else 'A comparison'} · {what} · {recipe.model.name}"
    if not study.single:
        count = len(study.titles)
        facts += " · 1 method" if count == 1 else f" · {count} methods"
        facts += " · 1 seed" if study.seeds == 1 else f" · {study.seeds} seeds"
    mark = _mark(f"from test records; {NOT_COVERED}")
    first, *rest = verdict.words(study)
    more = "".join(f"<p>{_prose(sentence)}</p>" for sentence in rest)
    tiles = "".join(
        f'<div class="tile"><dt>{html.escape(one.name)}{"" if one.covered else mark}</dt>'
        f"<dd>{html.escape(one.value)}<small>{html.escape(one.beside)}</small></dd></div>"
        for one in tiles_of(study)
    )
    section, first_figures = above_the_fold(study)
    shown = _parts(first_figures, section, figures, mark)
    more = f'<div class="verdict more">{more}</div>' if more else ""
    return f"""<section id="verdict" class="hero">
<p class="kicker">{html.escape(facts)}</p>
<h1>{html.escape(recipe.name)}</h1>
<div class="verdict"><h2 class="quiet">The verdict</h2>
<p class="lead">{_prose(first)}{mark}</p>
</div>
<dl class="tiles">{tiles}</dl>
{shown}{more}{_next(study) if study.single else ""}
<p class="uncovered" id="not-covered"><b>†</b> Not covered by ε: computed from test records or raw
gradients as they are. Look at it yourself, do not publish it with the model. {_how("verdict")}</p>
</section>"""


def _prose(text: str) -> str:
    """Text in which no line ends within an option, or within a number such as 1e-6."""
    return _HYPHENED.sub(r'<span class="whole">\g<0></span>', html.escape(text))


def _next(study: Study) -> str:
    def words(line: str) -> str:  # which no line breaks within, where one has room for them
        return " ".join(f"<span>{html.escape(word)}</span>" for word in line.split(" "))

    steps = "".join(
        f"<li>{_prose(one.why)}{command(words(one.command))}</li>" for one in next_steps(study)
    )
    return f'<h2 class="after">What to do next</h2><ol class="next">{steps}</ol>'


def _section(section: Section, figures: dict[str, Any]) -> str:
    mark = "" if section.not_covered is None else _mark(section.not_covered)
    before = len(figures)
    parts = _parts(section.parts, section.name, figures)
    # Every figure has the link itself.
    shown = f'<p class="marks">{_how(section.name)}</p>' if len(figures) == before else ""
    return f"""<section id="{section.name}">
<h2>{html.escape(section.title)}{mark}</h2>
<p class="sentence">{_prose(section.sentence)}</p>
{shown}{parts}
</section>"""


def _parts(parts: Sequence[Part], name: str, figures: dict[str, Any], mark: str = "") -> str:
    """Figures that need not be wide are put side by side where there is room.

    ``mark`` stands beside their titles, where no section's title has one.
    """
    made: list[str] = []
    beside: list[str] = []

    def close() -> None:
        if beside:
            made.append(f'<div class="beside">{"".join(beside)}</div>')
            beside.clear()

    for place, part in enumerate(parts):
        if isinstance(part, Figure) and not part.wide:
            beside.append(_figure(part, name, figures, mark))
            continue
        close()
        match part:
            case Html():
                made.append(part.markup)
            case Grid():
                made.append(_grid(part))
            case Figure():
                made.append(_figure(part, name, figures, mark))
            case Tabs():
                made.append(_tabs(part, f"{name}-{place}", name, figures))
    close()
    return "".join(made)


def _tabs(tabs: Tabs, prefix: str, name: str, figures: dict[str, Any]) -> str:
    buttons, panels = [], []
    for place, (title, parts) in enumerate(tabs.panels.items()):
        own, first = f"{prefix}-{place}", place == 0
        buttons.append(
            f'<button type="button" role="tab" id="tab-{own}" aria-controls="panel-{own}" '
            f'aria-selected="{str(first).lower()}" tabindex="{0 if first else -1}">'
            f"{html.escape(title)}</button>"
        )
        panels.append(
            f'<div role="tabpanel" id="panel-{own}" aria-labelledby="tab-{own}"'
            f'{"" if first else " hidden"}><h3 class="printed">{html.escape(title)}</h3>'
            f"{_parts(parts, name, figures)}</div>"
        )
    if len(panels) == 1:
        return "".join(_parts(parts, name, figures) for parts in tabs.panels.values())
    listed = f'<div role="tablist" aria-label="{html.escape(tabs.label)}">{"".join(buttons)}</div>'
    return f'<div class="tabs">{listed}{"".join(panels)}</div>'


def _figure(figure: Figure, name: str, figures: dict[str, Any], mark: str = "") -> str:
    figures[figure.name] = {
        "data": [dict(trace) for trace in figure.traces],
        "layout": {**figure.layout, "height": figure.height},
        "saved": saved(figure),
    }
    keys = "".join(_key(key) for key in figure.keys)
    legend = f'<div class="keys">{keys}</div>' if len(figure.keys) > 1 else ""
    sentence = html.escape(figure.sentence)
    title = f"<h3>{html.escape(figure.title)}{mark}</h3>" if figure.title else ""
    return f"""<figure>
{title}{legend}<div class="plot" id="{figure.name}" style="height:{figure.height}px" role="img"
aria-label="{sentence}"></div>
<figcaption>{_prose(figure.sentence)} {_how(name)}</figcaption>
<div class="under"><details class="data"><summary>Data</summary>{_grid(figure.data)}</details>
<span class="save">Save <button type="button" data-format="svg">SVG</button>
<button type="button" data-format="png">PNG</button></span></div>
</figure>"""


def _key(key: Key) -> str:
    tint = key.colour.removeprefix("@")
    name, shown = html.escape(key.name), str(key.shown).lower()
    return (
        f'<button type="button" class="key" aria-pressed="{shown}" data-key="{name}">'
        f'<i class="{key.mark}" style="--tint:var(--{tint})"></i>{name}</button>'
    )


def _grid(grid: Grid) -> str:
    def cell(tag: str, place: int, text: str) -> str:
        numeric = ' class="number"' if place >= grid.numeric else ""
        return f"<{tag}{numeric}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", place, text) for place, text in enumerate(grid.head))
    rows = "".join(
        "<tr>" + "".join(cell("td", place, text) for place, text in enumerate(row)) + "</tr>"
        for row in grid.rows
    )
    # Not a caption element: it would be as wide as a table that scrolls.
    said = html.escape(grid.caption)
    caption = f'<p class="caption">{said}</p>' if said else ""
    return (
        f'<div class="table" tabindex="0"><table aria-label="{said}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{caption}"
    )


def _mark(reason: str) -> str:
    """What stands for "not covered by epsilon", which the page says once."""
    return f'<a class="dagger" href="#not-covered" title="{html.escape(reason)}">†</a>'


def _how(name: str) -> str:
    return f'<a class="how" href="#note-{name}">How to read this</a>'


def _notes(sections: Sequence[Section]) -> str:
    items = "".join(
        f'<div class="note" id="note-{one.name}"><h3>{html.escape(one.title)}</h3>'
        f'<p>{html.escape(one.note)} <span class="more">More in '
        f"<code>{html.escape(one.more)}</code>. "
        f'<a href="#{one.name}">Back to it</a></span></p></div>'
        for one in sections
    )
    return f"""<section id="notes"><h2>How to read this page</h2>
<p class="sentence">Epsilon covers what a run releases: its model, and nothing else on this page
but what follows from public settings. What is marked † was computed from records as they
are.</p>{items}</section>"""
