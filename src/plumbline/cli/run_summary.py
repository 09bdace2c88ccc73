"""A finished run as people see it: metrics by group, and the statement."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.cli.app import console, note, show, show_json, show_statement, table
from plumbline.formats import number, percent

if TYPE_CHECKING:
    from plumbline.experiments import Recipe
    from plumbline.instruments import Trained

_NUMBERS = 61  # columns that a line of all metrics takes beside the group's name


def settle(recipe: Recipe, root: Path, **more: Any) -> Recipe:
    """The recipe with the schema of its table; says what was found privately."""
    from plumbline.experiments.settling import settled

    found = settled(recipe, root, **more)
    if found.words:
        note(f"Found privately about the table: {'; '.join(found.words)}. Declare what you know.")
    return found.recipe


def show_run(found: Trained, json_: bool) -> None:
    """A finished run: metrics by group and the statement."""
    from plumbline.experiments.files import ENCODING, LEDGER, MODEL, RESULT, STATEMENT
    from plumbline.fairness import NOT_COVERED

    folder = found.folder
    result = {**found.result.to_json(), "folder": str(folder)}
    if json_:
        show_json(result)
        return
    report = result["report"]
    console.print(by_group(report))
    for sentence in remarks(report):
        show(sentence)
    show(f"({NOT_COVERED})")
    console.print()
    show_statement(result["statement"])
    console.print()
    files = {MODEL: "the weights", STATEMENT: "the statement", RESULT: "the result"}
    files |= {LEDGER: "the ledger", ENCODING: "how rows become numbers"}
    kept = [words for name, words in files.items() if (folder / name).is_file()]
    show(f"In {folder}: {', '.join(kept)}.")
    show(f"Its page: plumbline report {shlex.quote(str(folder))}")
    if found.encoding is not None:
        show(f"New rows: plumbline predict {shlex.quote(str(folder))} --data NEW.csv")


def remarks(report: dict[str, Any]) -> Iterator[str]:
    """What the metrics of a result's report come to, in words."""
    gap = report.get("difference", {}).get("accuracy", {}).get("value")
    if isinstance(gap, float) and len(report["by_group"]) > 1:
        yield f"Accuracy differs by {100 * gap:.1f} points between groups."
    if report["overall"].get("selection rate") in (0.0, 1.0):
        yield "The model gives all test records the same class: its accuracy is that class's share."
    if report.get("too_small"):
        yield f"Too few records to judge: {', '.join(report['too_small'])}."


def by_group(report: dict[str, Any]) -> Any:
    """The metrics of a result's report, a line for each group and one for all."""
    names = {
        "accuracy": "accuracy",
        "loss": "loss",
        "selection rate": "selected",
        "true positive rate": "true pos.",
        "false positive rate": "false pos.",
    }
    kept = [name for name in names if isinstance(report["overall"].get(name), float)]
    if max(map(len, report["by_group"])) + _NUMBERS > console.width:
        kept = [name for name in kept if name in ("accuracy", "loss")]
    shown = table("group", "records", *(names[name] for name in kept))
    lines = dict(report["by_group"])
    sizes = dict(report["sizes"])
    if list(lines) != ["all"]:
        lines["all"], sizes["all"] = report["overall"], sum(sizes.values())
    for group, values in lines.items():
        cells = [(number if name == "loss" else percent)(values[name]) for name in kept]
        shown.add_row(group, f"{sizes[group]:,}", *cells)
    return shown
