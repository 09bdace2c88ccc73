"""docs/reproductions.md: every reproduction that has been made here, with its verdicts.

`python -m benchmarks.reproductions [NAME[:SIZE] ...]` makes those named (what is finished in
the folder of runs is not repeated), keeps each as benchmarks/results/reproductions/NAME-SIZE.json,
and writes the page from all that are kept, and the ends of the pages of methods. With `--more-seeds
3,4` these seeds are made, and join those that are kept.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.claim_pictures import by_difference, by_sweep, by_verdict, swept
from plumbline.experiments.files import read_json, write_json
from plumbline.experiments.paper_verdicts import ClaimOutcome, PaperVerdict
from plumbline.experiments.papers import SIZES, names, read
from plumbline.experiments.reproducing import Reproduction, read_reproduction, reproduce
from plumbline.experiments.reproduction_text import (
    command,
    interval,
    place,
    section,
    summary,
    verdict,
)
from plumbline.experiments.studies import Measurements
from plumbline.formats import markdown

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).parent / "results" / "reproductions"
LEARNED = Path(__file__).parent / "learned.md"
PAGE = ROOT / "docs" / "reproductions.md"
IMAGES = ROOT / "docs" / "images"
METHODS = ROOT / "docs" / "methods"
MEASURED = "## What we measured"
HEAD = """# Reproductions

The papers' claims, tables and figures, made with the recipes in `recipes/papers`. This page is
written by `python -m benchmarks.reproductions` from the results in
`benchmarks/results/reproductions`; every verdict on it is computed.

A claim is a list of differences, each with a 95 % interval over seeds, paired where the seeds were
kept. It is *reproduced* when every interval lies above what was claimed, which is half of the
published difference where there are numbers, and *reproduced in direction only* when they lie
above zero. It is *contradicted* when an interval lies below what was claimed and not above zero,
else *undecided*, with about how many seeds it would take. A difference is *explained by tuning*
when every method was tuned alike, for what the difference is about, and the tuned interval
excludes half of the published difference. A published value is judged at the paper's size only,
and a claim at a smaller size only if the recipe says why that size can answer; otherwise it is
*not judged at this size*.

A row of values is *reproduced* when all of our means are within the tolerance of the published
file, *undecided* when one of them misses it by less than two standard errors, and *reproduced in
direction only* when they lie on the published side of the reference row. The intervals of step
times are those of the medians of a race.
"""
PICTURES = """![The papers' claims by verdict](images/claims-by-verdict.svg)

Each line below is the interval of one claim that states a difference, of the part that its verdict
hangs on. The unit is the difference claimed. Lines are cut at the ends of the axis.

![Measured differences in units of those claimed](images/claims-by-difference.svg)
"""
SWEPT = """## What was swept

Means over seeds on the test records, with their standard errors: whoever picks a value from these
has looked at the test records. Claims about a method's best row take the highest mean, for all
methods alike.
"""
OPEN = """## What is not judged yet

Minutes are about those on two cores, as the recipes state them. What is undecided is in the
summary, with the seeds that it would take.
"""
BEYOND = "Beyond the papers"
"""How the source of a question of our own begins."""
UNJUDGED = (PaperVerdict.NOT_JUDGED, PaperVerdict.MISSING)


def main() -> None:
    """Makes, keeps, writes the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 004-table-4:paper; quick unless said")
    parser.add_argument("--out", default="runs", help="where runs are kept")
    parser.add_argument("--workers", type=int, help="how many runs at a time")
    parser.add_argument("--more-seeds", help="such as 3,4: made, and added to what is kept")
    options = parser.parse_args()
    more = [int(seed) for seed in options.more_seeds.split(",")] if options.more_seeds else None
    console = Console()
    KEPT.mkdir(parents=True, exist_ok=True)
    for given in options.names:
        name, _, size = given.partition(":")
        chosen: Any = size or "quick"
        if more is not None and read(name)[0].study != "comparison":
            parser.error(f"--more-seeds adds to comparisons; {name} is none: give it more seeds")
        with console.status(given):
            found = reproduce(name, chosen, options.out, seeds=more, workers=options.workers)
        path = KEPT / f"{name}-{chosen}.json"
        write_json(path, found.kept() if more is None else _with_more_seeds(path, found))
        console.print(section(found), highlight=False, soft_wrap=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


def _with_more_seeds(path: Path, found: Reproduction) -> dict[str, Any]:
    """What is kept, and one part more."""
    stored: dict[str, Any] = read_json(path)
    (part,) = found.kept()["parts"]
    part["more_seeds"] = True
    return {**stored, "parts": [*(one for one in stored["parts"] if one != part), part]}


def pages() -> dict[Path, str]:
    """The text of every page that is written from kept results."""
    found = kept()
    every = sorted([*found, *not_made(found)], key=lambda one: one.name)
    made = {
        PAGE: _page(found, every),
        IMAGES / "claims-by-verdict.svg": by_verdict(every),
        IMAGES / "claims-by-difference.svg": by_difference(every),
    }
    made |= {IMAGES / f"sweep-{one.name}.svg": by_sweep(one) for one in found if swept(one)}
    for path in sorted(METHODS.glob("*.md")):
        if path.stem not in ("index", "compose"):
            lines = _measured(path.stem, found)
            body = path.read_text(encoding="utf-8").partition(f"\n{MEASURED}\n")[0].rstrip()
            made[path] = f"{body}\n\n{MEASURED}\n\n{lines}"
    return made


def kept() -> list[Reproduction]:
    """The kept reproductions, each at its largest size."""
    found = [read_reproduction(path) for path in sorted(KEPT.glob("*.json"))]
    best = {one.name: one for one in sorted(found, key=lambda one: SIZES.index(one.size))}
    return [best[name] for name in sorted(best)]


def not_made(made: list[Reproduction]) -> list[Reproduction]:
    """The others, without measurements, at the smallest size that judges their claims."""
    found = []
    for name in sorted(set(names()) - {one.name for one in made}):
        plan, published = read(name)
        size = next(one for one in SIZES if one in plan.answers or one == "paper")
        found.append(Reproduction(name, size, plan, published, Measurements({}), ()))
    return found


def _page(found: list[Reproduction], every: list[Reproduction]) -> str:
    papers = [one for one in every if not place(one).startswith(BEYOND)]
    ours = [one for one in every if one not in papers]
    counts = f"Claims of the papers: {_counted(papers)}.\nQuestions of our own: {_counted(ours)}."
    told = f"## Summary\n\n{counts}\n\n{PICTURES}\n{summary(every)}\n"
    parts = [HEAD, told, learned(found), _sweeps(found), _open(every), *map(section, found)]
    return "\n".join(parts)


def _counted(made: list[Reproduction]) -> str:
    """How many claims there are, and how many of each verdict."""
    verdicts = [str(one.verdict) for each in made for one in each.claims.values()]
    counts = ", ".join(f"{number} {name}" for name, number in Counter(verdicts).most_common())
    return f"{len(verdicts)}, of which {counts}"


def _sweeps(found: list[Reproduction]) -> str:
    """A picture for each reproduction that sweeps a setting."""
    shown = [
        f"{place(one)} (`{command(one)}`):\n\n![{place(one)}](images/sweep-{one.name}.svg)\n"
        for one in found
        if swept(one)
    ]
    return "\n".join([SWEPT, *shown]) if shown else ""


def _open(every: list[Reproduction]) -> str:
    """What no verdict has been reached on, and how long the smallest size takes that would."""
    rows = []
    for one in every:
        verdicts = [outcome.verdict for outcome in one.claims.values()]
        if left := sum(map(verdicts.count, UNJUDGED)):
            size, minutes = next(
                (size, minutes)
                for size, minutes in one.plan.minutes.items()
                if size in one.plan.answers or size == "paper"
            )
            runs = f", the runs of {one.plan.same_runs}" if one.plan.same_runs else ""
            rows.append((f"{place(one)}{runs}", str(left), size, f"{minutes:g}"))
    if not rows:
        return ""
    head = ("reproduction", "claims without a verdict", "size that would reach one", "minutes")
    return f"{OPEN}\n{markdown(head, rows)}\n"


def learned(found: list[Reproduction]) -> str:
    """What we learned, with each {NAME | paper or tuned | key} replaced by its mean."""
    by_name = {one.name: one.measurements for one in found}

    def number(match: re.Match[str]) -> str:
        name, column, key = (part.strip() for part in match[1].split("|"))
        mean: float = getattr(by_name[name], column)[key].mean
        return f"{mean:.3g}"

    return re.sub(r"\{([^}]+)\}", number, LEARNED.read_text(encoding="utf-8"))


def _measured(method: str, found: list[Reproduction]) -> str:
    """The claims about a method, and what came of them."""
    lines = [
        f"- {place(one)}: {says}: **{verdict(outcome)}** ({_measured_at(one, outcome)})."
        for one in found
        for says, outcome in one.claims.items()
        if one.plan.about == method or _rows_of(method, one) & _compared(one, says)
    ]
    if not lines:
        return "No reproduction has measured it yet.\n"
    return "\n".join([*lines, "", "All numbers: [Reproductions](../reproductions.md).", ""])


def _measured_at(found: Reproduction, outcome: ClaimOutcome) -> str:
    """The difference that the verdict hangs on, the size and the network."""
    shown = interval(outcome.deciding.interval)
    network = found.plan.network(found.size)
    parts = (f"difference {shown}" if shown else "", f"size {found.size}", network.strip("-"))
    return "; ".join(part for part in parts if part)


def _compared(found: Reproduction, says: str) -> set[str]:
    """The labels of the rows that a claim compares, without their place in a sweep."""
    (claim,) = (one for one in found.published.claims if one.says == says)
    return {re.split(r" / |, best|, epsilon ", key)[0] for key in claim.keys}


def _rows_of(method: str, found: Reproduction) -> set[str]:
    """What the rows of a method are called in a reproduction."""
    settings = found.plan.at(found.size)
    recipe = settings.get("recipe", settings)
    rows = recipe.get("methods", ())
    if isinstance(rows, dict):  # of a benchmark: titles to names
        return {title for title, name in rows.items() if name == method}
    return {row.get("label", row["name"]) for row in rows if row["name"] == method}


if __name__ == "__main__":
    main()
