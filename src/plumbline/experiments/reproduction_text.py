"""A reproduction in Markdown: its values, its rows, its claims, and their place in a summary."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from plumbline.experiments.claim_intervals import DifferenceInterval
from plumbline.experiments.paper_verdicts import ClaimOutcome
from plumbline.experiments.reproducing import Reproduction
from plumbline.experiments.studies import Measured
from plumbline.experiments.studies.larger_class import LARGER_CLASS
from plumbline.formats import markdown

SUMMARY_HEAD = ("claim", "verdict", "difference, 95 % interval", "size", "network", "command")


def section(found: Reproduction) -> str:
    """One reproduction: everything that was published, and everything that claims compare."""
    paper, tuned = found.measurements.paper, found.measurements.tuned
    published = {line.what for line in found.values}
    compared = {key for claim in found.published.claims for key in claim.keys} - published
    # A constant row stands beside published rows, for what these are about.
    compared |= {f"{LARGER_CLASS} / {what.partition(' / ')[2]}" for what in published}
    tables: list[tuple[tuple[str, ...], list[Any]]] = [
        (
            ("value", "published", "ours", "tuned alike"),
            [
                (one.what, f"{one.published:g}", _shown(one.ours), _shown(one.tuned))
                for one in found.values
            ],
        ),
        (("row", "verdict"), list(found.rows.items())),
        (
            ("claim", "verdict", "part", "holds", "difference", "tuned alike"),
            [line for says, outcome in found.claims.items() for line in _lines(says, outcome)],
        ),
        (
            ("also measured", "ours", "tuned alike"),
            [(k, _shown(paper[k]), _shown(tuned.get(k))) for k in sorted(paper) if k in compared],
        ),
    ]
    about = (
        f"{found.published.source}. Size: {found.size}. Network: {_network(found)}. "
        f"Commit: {', '.join(found.commits)}. Command: `{command(found)}`."
    )
    why = found.plan.answers.get(found.size)
    notes = (*found.published.notes, *found.measurements.notes)
    lines = [
        f"- {note}" for note in ((f"Why this size can answer: {why}", *notes) if why else notes)
    ]
    shown = [markdown(head, rows) for head, rows in tables if rows]
    return "\n\n".join([f"## {found.plan.title}", about, *shown, "\n".join(lines)]).rstrip() + "\n"


def summary(reproductions: Iterable[Reproduction]) -> str:
    """One row for each claim of each reproduction."""
    rows = [
        (
            f"{place(found)}: {says}",
            verdict(outcome),
            interval(outcome.deciding.interval),
            found.size,
            _network(found),
            f"`{command(found)}`",
        )
        for found in reproductions
        for says, outcome in found.claims.items()
    ]
    return markdown(SUMMARY_HEAD, rows)


def place(found: Reproduction) -> str:
    """The paper and its table or figure, without the authors."""
    return re.sub(r" [(].*?[)]", "", found.published.source, count=1)


def verdict(outcome: ClaimOutcome) -> str:
    """A verdict with its remark."""
    return outcome.verdict + (f" ({outcome.remark})" if outcome.remark else "")


def command(found: Reproduction) -> str:
    """What makes it again."""
    return f"plumbline reproduce {found.name} --size {found.size}"


def interval(value: DifferenceInterval) -> str:
    """A difference, and where it lies."""
    if math.isnan(value.mean):
        return ""
    ends = "" if math.isnan(value.low) else f" ({value.low:.3g} to {value.high:.3g})"
    return f"{value.mean:.3g}{ends}"


def _lines(says: str, outcome: ClaimOutcome) -> Iterable[tuple[str, ...]]:
    for place, one in enumerate(outcome.parts):
        first = (says, verdict(outcome)) if place == 0 else ("", "")
        held = f"{one.shown}, explained by tuning" if one.explained else str(one.shown)
        yield *first, one.part.text, held, interval(one.interval), interval(one.tuned)


def _network(found: Reproduction) -> str:
    name = found.plan.network(found.size)
    return f"{name}, another than the paper's" if found.another_network else name


def _shown(value: Measured | None) -> str:
    if value is None or math.isnan(value.mean):
        return ""
    error = "" if math.isnan(value.standard_error) else f" ± {value.standard_error:.2g}"
    return f"{value.mean:.4g}{error}"
