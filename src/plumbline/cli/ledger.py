"""``plumbline ledger``: what was spent, from the file alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table, tiny


@app.command(
    epilog=examples(
        "plumbline ledger runs/demo/DPSGD--paper--seed0-0123456789",
        "plumbline ledger private/customers.ledger --delta 1e-6 --json",
    )
)
def ledger(
    path: Annotated[Path, typer.Argument(help="A ledger, or the folder of a run that has one.")],
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is stated.")] = 1e-5,
    json_: Json = False,
) -> None:
    """Says what a ledger's runs have spent, each and together."""
    from plumbline.experiments.files import LEDGER
    from plumbline.mechanism.ledger import Ledger
    from plumbline.mechanism.ledger_limit import ledger_epsilon
    from plumbline.mechanism.rounding import rounded_up

    file = path / LEDGER if path.is_dir() else path
    if not file.is_file():
        raise WrongUse(f"There is no ledger at {file}; give the file, or the folder of a run.")
    if not 0 < delta < 1:
        raise WrongUse(f"--delta is {delta:g}; it must lie strictly between 0 and 1.")
    read = Ledger.read(file)
    runs = {
        run: {
            "steps": read.charged(run),
            "epsilon": ledger_epsilon(read.entries(run), delta=delta),
        }
        for run in sorted(read.runs())
    }
    spent = read.epsilon(delta)
    if json_:
        facts = {"ledger": str(file), "delta": delta, "epsilon": spent, "limit": read.limit}
        show_json({**facts, "runs": runs})
        return
    shown = table("run", "steps charged", "epsilon")
    for run, row in runs.items():
        shown.add_row(run, f"{row['steps']:,}", rounded_up(row["epsilon"], 4, "infinite"))
    console.print(shown)
    show(f"Epsilon of all of it at delta {tiny(delta)}: {rounded_up(spent, 4, 'infinite')}.")
    if math.isinf(spent):
        show("It is infinite because a run has no guarantee.")
    if read.limit is not None:
        most, at = read.limit
        show(f"The data set's budget: epsilon {most:g} at delta {tiny(at)}.")
