"""``plumbline ledger``: what was spent, from the file alone."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table
from plumbline.formats import tiny

if TYPE_CHECKING:
    from plumbline.mechanism.shared_ledger import SharedLedger


@app.command(
    epilog=examples(
        "plumbline ledger my.csv   (all runs on this table)",
        "plumbline ledger runs/demo/DPSGD--paper--seed0-0123456789",
        "plumbline ledger private/customers.ledger --delta 1e-6 --json",
    )
)
def ledger(
    path: Annotated[
        Path,
        typer.Argument(help="A table, a ledger, or the folder of a run that has one."),
    ],
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is stated.")] = 1e-5,
    json_: Json = False,
) -> None:
    """Says what a ledger's runs have spent, each and together; of a table, all runs on it."""
    from plumbline.experiments.files import LEDGER
    from plumbline.mechanism.shared_ledger import SharedLedger

    if not 0 < delta < 1:
        raise WrongUse(f"--delta is {delta:g}; it must lie strictly between 0 and 1.")
    files = [path / LEDGER if path.is_dir() else path]
    if path.suffix.lower() in (".csv", ".parquet") and path.is_file():
        files = _of_table(path)
    elif not files[0].is_file():
        raise WrongUse(f"There is no ledger at {files[0]}; give the file, or the folder of a run.")
    found = [_facts(SharedLedger.read(file), delta) for file in files]
    if json_:
        show_json(found[0] if len(found) == 1 else {"ledgers": found})
        return
    for facts in found:
        _show(facts)


def _of_table(path: Path) -> list[Path]:
    """The ledgers of a table."""
    from plumbline.experiments.recipe import DataPart
    from plumbline.experiments.table_ledgers import ledgers_of

    files = ledgers_of(DataPart(name="table", options={"path": str(path)})).paths
    if not any(file.is_file() for file in files):
        raise WrongUse(f"No run on {path} is known here, nor on another file with its rows.")
    return [file for file in files if file.is_file()]


def _facts(read: SharedLedger, delta: float) -> dict[str, Any]:
    """What a ledger says."""
    from plumbline.experiments.charged_runs import ChargedRuns
    from plumbline.experiments.together import totals
    from plumbline.mechanism.ledger_limit import ledger_epsilon

    runs: dict[str, Any] = {}
    for run in sorted(read.runs()):
        spent = ledger_epsilon(read.entries(run), delta=delta)
        runs[run] = {"steps": read.charged(run), "epsilon": spent}
        if about := read.about(run):
            named = {name: about.get(name) for name in ("title", "part", "folder")}
            runs[run] |= {**named, "released": run in read.released}
    facts = {"ledger": str(read.path), "delta": delta, "epsilon": read.epsilon(delta)}
    facts |= {"limit": read.limit, "runs": runs}
    if any(read.about(run) for run in runs):
        facts["budget"] = totals(ChargedRuns([read.path]), delta=delta).to_json()
    return facts


def _place(named: tuple[str, dict[str, Any]]) -> tuple[bool, int, str]:
    """Released models first, then runs, comparisons and trials; what was asked about rows last."""
    title, row = named
    parts = ("run", "diagnosis", "comparison", "trial")
    place = parts.index(row["part"]) if row.get("part") in parts else len(parts)
    return not row.get("released"), place, title


def _show(facts: dict[str, Any]) -> None:
    from plumbline.mechanism.rounding import rounded_up

    shared = "budget" in facts
    shown = table("run", "steps", "epsilon", *(["made for", "released"] if shared else []))
    rows = [(row.get("title", run), row) for run, row in facts["runs"].items()]
    alike: Counter[tuple[str, ...]] = Counter()  # such as the trials of a method
    for title, row in sorted(rows, key=_place) if shared else rows:
        cells = [title, f"{row['steps']:,}", rounded_up(row["epsilon"], 4, "infinite")]
        if shared:
            cells += [row.get("part", ""), "yes" if row.get("released") else ""]
        alike[tuple(cells)] += 1
    for (title, *others), times in alike.items():
        shown.add_row(title if times == 1 else f"{title} ({times} times)", *others)
    console.print(shown)
    if shared:
        for sentence in facts["budget"]["words"]:
            show(sentence)
    else:
        spent, at = facts["epsilon"], tiny(facts["delta"])
        show(f"Epsilon of all of it at delta {at}: {rounded_up(spent, 4, 'infinite')}.")
        if math.isinf(spent):
            show("It is infinite because a run has no guarantee.")
    if facts["limit"] is not None:
        most, delta = facts["limit"]
        show(f"The data set's budget: epsilon {most:g} at delta {tiny(delta)}.")
    show(f"The ledger: {facts['ledger']}")
