"""``make mutants``: plants each bug in a copy of the source, and fails if no test notices one.

A bug is caught if one of its own tests fails. A copy that cannot be imported, or a run that takes
too long, tells nothing: it counts as an error, not as caught.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.base import ROOT, SOURCE, Mutant
from tests.mutants.catalogue import MUTANTS, SUBJECTS
from tests.mutants.forked import Ran, Tests, all_run

PAGE = ROOT / "docs" / "mutants.md"
SECONDS = 300.0
"""How long the tests of one bug may take."""

_FAILED = re.compile(r"^FAILED (tests/[^\s\[]+)(.*)$", re.MULTILINE)
_NO_FAIR_BUG = ("ImportError", "NameError", "SyntaxError")


@dataclass(frozen=True)
class Outcome:
    """What became of a bug.

    Attributes:
        verdict: "caught", "alive" or "error".
        words: The test that failed; or what went wrong.
    """

    verdict: str
    words: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Plants bugs; returns 0 if all are caught."""
    chosen = _options(arguments)
    names = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in chosen.only if name not in names]:
        print(f"There is no bug called {', '.join(unknown)}; --list shows all.", file=sys.stderr)
        return 2
    mutants = [names[name] for name in chosen.only] or list(MUTANTS)
    if chosen.list:
        for mutant in mutants:
            print(f"{mutant.name:<50}  {mutant.why}")
        return 0
    began = time.monotonic()
    try:
        outcomes = plant(mutants, chosen.jobs)
    except ValueError as error:
        print(f"Nothing was tried: {error}", file=sys.stderr)
        return 2
    by: dict[str, list[str]] = {verdict: [] for verdict in ("caught", "alive", "error")}
    for mutant, outcome in outcomes.items():
        by[outcome.verdict].append(mutant.name)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(by['caught'])} of {len(mutants)} caught, in {minutes:.1f} minutes.")
    for verdict in ("alive", "error"):
        for name in by[verdict]:
            print(f"{verdict}: {name}")
    if len(by["caught"]) < len(mutants):
        return 1
    caught = {one.name: outcome.words for one, outcome in outcomes.items()}
    if chosen.only:  # the others were caught when the page was written
        caught = {**on_page(PAGE.read_text("utf-8")), **caught}
    if missing := [one.name for one in MUTANTS if one.name not in caught]:
        print(f"Not on the page yet, so that it stays as it is: {', '.join(missing)}.")
    else:
        PAGE.write_text(page(caught), "utf-8")
    return 0


def plant(mutants: Sequence[Mutant], jobs: int) -> dict[Mutant, Outcome]:
    """Plants each bug in a copy of its own and runs its tests there; prints what came of it.

    Raises:
        ValueError: If a bug no longer applies, or a test fails without any.
    """
    outcomes: dict[Mutant, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="plumbline-mutants-") as name:
        folder = Path(name)
        clean = folder / "clean"
        shutil.copytree(SOURCE, clean)
        compileall.compile_dir(clean, quiet=1)  # once, for all copies
        planted = [_planted(mutant, clean, folder) for mutant in mutants]
        tests = list(dict.fromkeys(node for mutant in mutants for node in mutant.nodes))
        (ran,) = all_run([Tests(clean, tests, 10 * SECONDS)], 1)
        if ran.status != 0:
            raise ValueError(f"the tests do not pass without a bug.\n{ran.output[-3000:]}")
        for mutant, ran in zip(mutants, all_run(planted, jobs), strict=True):
            outcome = outcomes[mutant] = _judged(ran)
            print(_line(mutant, outcome, ran), flush=True)
    return outcomes


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this bug")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--list", action="store_true", help="show all bugs and plant none")
    return parser.parse_args(arguments)


def _line(mutant: Mutant, outcome: Outcome, ran: Ran) -> str:
    return f"{outcome.verdict:<7} {mutant.name:<50} {ran.seconds:4.0f} s  {outcome.words}"


def _planted(mutant: Mutant, clean: Path, folder: Path) -> Tests:
    copy = folder / mutant.name.replace(" ", "-")
    shutil.copytree(clean, copy, copy_function=os.link)
    mutant.plant(copy)
    return Tests(copy, [*mutant.nodes, "-x"], SECONDS)


def _judged(ran: Ran) -> Outcome:
    if ran.status == 0:
        return Outcome("alive", "no test failed")
    failed = _FAILED.search(ran.output)
    if ran.status == 1 and failed is not None and not any(e in failed[2] for e in _NO_FAIR_BUG):
        return Outcome("caught", failed[1])
    if ran.status is None:
        return Outcome("error", f"its tests take more than {SECONDS:.0f} seconds")
    return Outcome("error", f"pytest ended with {ran.status}:\n{ran.output[-2000:]}")


def on_page(text: str) -> dict[str, str]:
    """By the name of each bug on the page, the test that caught it."""
    rows = re.findall(r"^\| (.+?) \| .+ \| `.+?` \| `(.+)` \|$", text, re.MULTILINE)
    return {name: f"tests/{test.replace('`, `', '::')}" for name, test in rows}


def page(caught_by: Mapping[str, str]) -> str:
    """The table in the docs: every bug, where it was planted, and the test that caught it."""
    lines = [_HEAD.format(count=len(MUTANTS))]
    for title, mutants in SUBJECTS.items():
        lines += [f"## {title}\n", "| bug | what it would break | file | caught by |"]
        lines.append("| --- | --- | --- | --- |")
        for mutant in mutants:
            test = caught_by[mutant.name].removeprefix("tests/").replace("::", "`, `")
            lines.append(f"| {mutant.name} | {mutant.why} | `{mutant.file}` | `{test}` |")
        lines.append("")
    return "\n".join(lines)


_HEAD = """\
# Bugs planted on purpose

A test suite that passes says little about the bugs it would not notice. `make mutants` plants
{count} privacy bugs in a copy of the source, one at a time, runs the tests that should notice each,
and fails if one of them lives. All are caught. A bug counts as caught only if a test fails: a copy
that cannot be imported tells nothing.

The bugs are in `tests/mutants`, each with the text that it changes, so that none depends on a line
number; a fast test of the suite notices when one no longer applies. `make mutants` writes this
page.
"""


if __name__ == "__main__":
    sys.exit(main())
