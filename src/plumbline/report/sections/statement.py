"""The guarantee of each method in words, as its run states it."""

from __future__ import annotations

import html

from plumbline.formats import tiny
from plumbline.mechanism.rounding import rounded_up
from plumbline.report.reading import Study
from plumbline.report.section import Html, Part, Section, Tabs


def section(study: Study) -> Section:
    """The privacy statements, those of methods with a guarantee first."""
    titles = sorted(study.titles, key=lambda title: title not in study.private)
    panels: dict[str, list[Part]] = {title: [Html(_statement(study, title))] for title in titles}
    sentence = "What is promised to every record of the training data, and what is not."
    found = study.totals
    if found.shared:
        sentence += f" Each statement is of one run. {' '.join(found.sentences)}"
    elif found.everything.private > 1 and not study.single:
        sentence += f" Each statement is of one run. {found.everything_words}"
    return Section(
        "statement",
        "The guarantee",
        sentence,
        [Tabs("Method", panels)],
        note="Epsilon bounds how much anyone can learn about one record from what a run releases, "
        "up to a probability delta. It holds for one run. It does not cover what is marked so on "
        "this page, which was computed from the records as they are.",
        more="docs/statement.md",
    )


def _statement(study: Study, title: str) -> str:
    """A statement's paragraphs and lists; its first paragraph is the headline."""
    row = study.row(title)
    epsilon = rounded_up(row.epsilon, infinite="∞")
    delta = tiny(study.recipe.budget.delta)
    figure = (
        f'<p class="epsilon"><span class="number">ε = {epsilon}</span> '
        f'<span class="beside">at δ = {delta}</span></p>'
    )
    blocks = study.runs[title][0].result.statement.strip().split("\n\n")
    # What is promised, under what, and what is left out; the rest for those who ask.
    first = ("This is trusted", "What is not covered")
    open_ = [block for block in blocks[2:] if block.startswith(first)]
    rest = [block for block in blocks[2:] if block not in open_]
    said = [_block(block, first=place == 0) for place, block in enumerate([*blocks[:2], *open_])]
    more = "".join(_block(block, first=False) for block in rest)
    if more:
        more = f"<details><summary>The whole statement</summary>{more}</details>"
    return f'<div class="statement">{figure}{"".join(said)}{more}</div>'


def _block(block: str, first: bool) -> str:
    lines = block.splitlines()
    if len(lines) > 1 and any(line.startswith("- ") for line in lines[1:]):
        items: list[str] = []
        for line in lines[1:]:
            if line.startswith("- "):
                items.append(line[2:])
            elif items:
                items[-1] += " " + line.strip()
        listed = "".join(f"<li>{html.escape(item)}</li>" for item in items)
        return f"<h4>{html.escape(lines[0])}</h4><ul>{listed}</ul>"
    text = html.escape(" ".join(line.strip() for line in lines))
    return f'<p class="{"headline" if first else "more"}">{text}</p>'
