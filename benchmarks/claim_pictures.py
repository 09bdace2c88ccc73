"""The pictures of docs/reproductions.md: claims by verdict, differences that were found, sweeps.

All are drawn from the same results as the page's tables; nothing on them is typed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby, pairwise

from plumbline.experiments.paper_verdicts import PaperVerdict, PartOutcome
from plumbline.experiments.reproducing import Reproduction
from plumbline.experiments.reproduction_text import place
from plumbline.experiments.studies import Measured
from plumbline.experiments.studies.comparison import recipe_of

INK, SOFT, BACK = "#22303c", "#5f6d79", "#fbfaf6"
COLOURS = {
    PaperVerdict.REPRODUCED: "#1f6f8b",
    PaperVerdict.DIRECTION: "#7fb3c4",
    PaperVerdict.TUNING: "#b9a24c",
    PaperVerdict.CONTRADICTED: "#c1572b",
    PaperVerdict.UNDECIDED: "#a9b1b8",
    PaperVerdict.UNDEFINED: "#cfc9bd",
    PaperVerdict.NOT_JUDGED: "#e2ddd2",
    PaperVerdict.MISSING: "#efece4",
}
LINES = ("#1f6f8b", "#c1572b", "#b9a24c", "#5f6d79", "#7fb3c4", "#8a5a83")
WIDTH, LEFT, RIGHT, ROW, CLAIM = 900, 240, 880, 30, 36
FROM, TO = -2.0, 4.0
"""Where the second picture's axis begins and ends, in differences claimed."""


def by_verdict(found: Sequence[Reproduction]) -> str:
    """A bar for each paper: its claims by verdict."""
    papers = {
        paper: Counter(outcome.verdict for one in own for outcome in one.claims.values())
        for paper, own in groupby(found, paper_of)
    }
    most = max(sum(counts.values()) for counts in papers.values())
    body = []
    for row, (paper, counts) in enumerate(papers.items()):
        x, y = float(LEFT), 20 + ROW * row
        body.append(_text(LEFT - 12, y + 16, paper, anchor="end"))
        for verdict, colour in COLOURS.items():
            if number := counts[verdict]:
                width = number / most * (RIGHT - LEFT)
                body.append(_rect(x, y, width, 22, colour))
                dark = verdict in (PaperVerdict.REPRODUCED, PaperVerdict.CONTRADICTED)
                body.append(_text(x + width / 2, y + 16, str(number), BACK if dark else INK))
                x += width
    y = 20 + ROW * len(papers) + 16
    shown = [one for one in COLOURS if any(counts[one] for counts in papers.values())]
    for number, verdict in enumerate(shown):
        x, line = LEFT + 230 * (number % 3), y + 24 * (number // 3)
        body.append(_rect(x, line, 14, 14, COLOURS[verdict]))
        body.append(_text(x + 22, line + 12, verdict, SOFT, "start"))
    height = y + 24 * math.ceil(len(shown) / 3) + 6
    return _svg(height, "The papers' claims by verdict", body)


def by_difference(found: Iterable[Reproduction]) -> str:
    """The interval of each claim that states a difference, in units of what is claimed."""
    parts = [
        (f"{place(one)}: {says}", outcome.verdict, part)
        for one in found
        for says, outcome in one.claims.items()
        if outcome.verdict not in (PaperVerdict.NOT_JUDGED, PaperVerdict.MISSING)
        for part in [outcome.deciding]
        if part.part.by > 0 and not math.isnan(part.interval.low)
    ]
    top, bottom = 44, 44 + CLAIM * len(parts)
    body = []
    for mark, says, anchor in ((0, "no difference", "end"), (1, "what is claimed", "start")):
        body.append(_line(_across(mark), top - 30, _across(mark), bottom, "#d8d2c4", dash="4 4"))
        body.append(_text(_across(mark + (mark - 0.5) / 20), top - 16, says, SOFT, anchor))
    for row, (says, verdict, part) in enumerate(parts):
        y = top + CLAIM * row
        body.append(_text(20, y + 10, says, SOFT, "start", 12))
        low, mean, high = (_across(one / part.part.by) for one in _ends(part))
        body.append(_line(low, y + 22, high, y + 22, COLOURS[verdict], 4))
        body.append(f'<circle cx="{mean:.1f}" cy="{y + 22}" r="5" fill="{COLOURS[verdict]}"/>')
    return _svg(bottom + 6, "Measured differences in units of those claimed", body)


def by_sweep(found: Reproduction) -> str:
    """The accuracy of each method against what its recipe sweeps: means and standard errors."""
    lines = swept(found)
    (name,) = {name for line in lines.values() for name, _ in line}
    places = sorted({value for line in lines.values() for _, value in line})
    shown = [one for line in lines.values() for one in line.values()]
    low, high = min(one.mean for one in shown), max(one.mean for one in shown)
    top, bottom, key = 24, 264, 26 * len(lines)

    def across(value: float) -> float:
        return LEFT + (RIGHT - LEFT - 40) * places.index(value) / max(1, len(places) - 1)

    def up(value: float) -> float:
        return bottom - 20 - (bottom - top - 30) * (value - low) / ((high - low) or 1.0)

    body = [_line(LEFT - 20, bottom, RIGHT, bottom, SOFT)]
    body += [_text(across(one), bottom + 20, f"{one:g}", SOFT) for one in places]
    body.append(_text((LEFT + RIGHT) / 2, bottom + 42, name.replace("_", " "), SOFT))
    body += [_text(LEFT - 30, up(one) + 5, f"{one:.1f}", SOFT, "end") for one in (low, high)]
    body.append(_text(20, top, "accuracy, percent", SOFT, "start"))
    for number, (label, line) in enumerate(lines.items()):
        colour = LINES[number % len(LINES)]
        points = [(across(value), one) for (_, value), one in sorted(line.items())]
        for (x1, one), (x2, other) in pairwise(points):
            body.append(_line(x1, up(one.mean), x2, up(other.mean), colour, 2))
        for x, one in points:
            error = 0.0 if math.isnan(one.standard_error) else one.standard_error
            body.append(_line(x, up(one.mean - error), x, up(one.mean + error), colour, 2))
            body.append(f'<circle cx="{x:.1f}" cy="{up(one.mean):.1f}" r="4" fill="{colour}"/>')
        y = bottom + 62 + 26 * number
        body.append(_rect(LEFT, y, 14, 14, colour))
        body.append(_text(LEFT + 22, y + 12, label, SOFT, "start"))
    return _svg(bottom + 66 + key, f"{place(found)}: accuracy against what was swept", body)


def swept(found: Reproduction) -> dict[str, dict[tuple[str, float], Measured]]:
    """For each method and epsilon, the accuracy at each value of the one setting it sweeps."""
    made: dict[str, dict[tuple[str, float], Measured]] = {}
    if found.plan.study != "comparison":
        return made
    for row in recipe_of(found.plan.at(found.size)).rows:
        one = found.measurements.paper.get(f"{row.base}{row.place} / accuracy")
        if len(row.swept) == 1 and one is not None:
            (name,) = row.swept
            value = row.settings.get(name, row.learning_rate)
            label = row.base if row.epsilon is None else f"{row.base}, epsilon {row.epsilon:g}"
            made.setdefault(label, {})[name, float(value)] = one
    return made


def paper_of(found: Reproduction) -> str:
    """The short name of the paper that a reproduction is of."""
    return found.published.source.split(" (")[0]


def _ends(part: PartOutcome) -> tuple[float, float, float]:
    return part.interval.low, part.interval.mean, part.interval.high


def _across(value: float) -> float:
    """A place on the axis; what lies beyond its ends is drawn there."""
    return 20 + (min(max(value, FROM), TO) - FROM) / (TO - FROM) * (RIGHT - 20)


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'font-family="sans-serif" font-size="14" role="img" aria-label="{escape(title)}">'
    )
    back = f'<rect width="{WIDTH}" height="{height:g}" rx="8" fill="{BACK}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", back, *body, "</svg>\n"])


def _text(
    x: float, y: float, text: str, colour: str = INK, anchor: str = "middle", size: int = 14
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
        f'font-size="{size}">{escape(text)}</text>'
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dash: str = ""
) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"{dashed}/>'
    )
