"""``plumbline verify``: what a run's files confirm of what it says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from plumbline.cli.app import (
    Json,
    WrongUse,
    app,
    console,
    examples,
    note,
    show,
    show_json,
    show_statement,
    table,
)

if TYPE_CHECKING:
    from plumbline.experiments.verification import Check, Verification

EPSILON_UNKNOWN = 3
"""The exit code where nothing is contradicted, and epsilon is not confirmed."""

_STYLES = {"confirmed": "green", "not confirmed": "yellow", "contradicted": "bold red"}


@app.command(
    epilog=examples(
        "plumbline verify runs/demo/DPSGD--paper--seed0-0123456789",
        "plumbline verify runs/demo   (every run of a comparison)",
        "plumbline verify runs/my/Global-Adapt-* --model-card README.md",
        "plumbline verify runs/demo --data --json",
    )
)
def verify(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of a comparison.")],
    data: Annotated[
        bool,
        typer.Option(
            "--data", help="Load the recipe's data: count its records, judge the model again."
        ),
    ] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(help="The ledger that the run was charged to, if not in its folder."),
    ] = None,
    model_card: Annotated[
        Path | None,
        typer.Option(help="Write a model card with the statement here.", metavar="PATH"),
    ] = None,
    json_: Json = False,
) -> None:
    """Derives epsilon again from a run's ledger, and compares its files with what it says.

    Exit code 0 when epsilon is confirmed and nothing contradicted, 1 when something is
    contradicted, 3 when nothing is but epsilon could not be confirmed (its ledger is not there).
    """
    from plumbline.experiments.files import FileError, write_text
    from plumbline.experiments.model_card import model_card as card_of
    from plumbline.experiments.run_spec import runs_in
    from plumbline.experiments.verification import CONTRADICTED
    from plumbline.experiments.verification import verify as verified

    try:
        folders = runs_in(run)
        if model_card is not None and len(folders) > 1:
            raise WrongUse(
                f"{run} has {len(folders)} runs; a model card is of one. Give its folder."
            )
        if ledger is not None and len(folders) > 1:
            raise WrongUse(f"{run} has {len(folders)} runs; give --ledger with the folder of one.")
        found = [verified(folder, data=data, ledger=ledger) for folder in folders]
    except FileError as error:
        raise WrongUse(str(error)) from error
    if json_:
        shown = [one.to_json() for one in found]
        show_json(shown[0] if len(shown) == 1 else {"runs": shown})
    elif len(found) == 1:
        _show_one(found[0])
    else:
        _show_all(found)
    if model_card is not None:
        write_text(model_card, card_of(found[0]))
        note(f"The model card is in {model_card}.")
    if any(one.of(CONTRADICTED) for one in found):
        raise typer.Exit(1)
    if any(one.epsilon is None for one in found):
        raise typer.Exit(EPSILON_UNKNOWN)


def _show_one(found: Verification) -> None:
    from plumbline.experiments.verification import CONFIRMED, CONTRADICTED, NEVER, UNKNOWN

    show(f"{found.claim.spec.name}, in {found.claim.folder}")
    console.print()
    shown = table("what", "outcome", "found", numbers=False)
    for check in found.checks:
        shown.add_row(check.what, _outcome(check), check.words)
    console.print(shown)
    wrong, unknown = found.of(CONTRADICTED), found.of(UNKNOWN)
    counted = f"{len(found.of(CONFIRMED))} confirmed, {len(unknown)} could not be"
    if wrong:
        show(f"{_listed(wrong)} contradicted ({counted}). Do not rely on this run's statement.")
    elif found.epsilon is None:
        show(
            f"Epsilon could not be confirmed. Nothing is contradicted ({counted}), but do not rely "
            "on this run's statement."
        )
    else:
        show(f"Nothing is contradicted ({counted}).")
    console.print()
    show_statement("\n".join(["No file can confirm:", *(f"- {item}" for item in NEVER)]))


def _show_all(found: list[Verification]) -> None:
    from plumbline.experiments.verification import CONFIRMED, CONTRADICTED, UNKNOWN
    from plumbline.mechanism.rounding import rounded_up

    # Short titles: a long name beside them still fits into 80 columns.
    shown = table("run", "epsilon", "confirmed", "unclear", "contradicted")
    for one in found:
        epsilon = "-" if one.epsilon is None else rounded_up(one.epsilon, 4)
        counts = [len(one.of(outcome)) for outcome in (CONFIRMED, UNKNOWN, CONTRADICTED)]
        shown.add_row(one.claim.spec.name, epsilon, *map(str, counts))
    console.print(shown)
    wrong = [(one, check) for one in found for check in one.of(CONTRADICTED)]
    for one, check in wrong:
        show(f"{one.claim.spec.name}: {check.what} contradicted: {check.words}")
    for one in found:
        if one.epsilon is None:
            show(f"{one.claim.spec.name}: epsilon could not be confirmed.")
    if not wrong:
        show(f"Nothing is contradicted in {len(found)} runs.")
    show("Each epsilon is of its run alone: what is made on the same records adds up.")


def _outcome(check: Check) -> Text:
    return Text(check.outcome, _STYLES[check.outcome])


def _listed(checks: list[Check]) -> str:
    names = ", ".join(dict.fromkeys(check.what for check in checks))
    return f"{names} {'is' if len(checks) == 1 else 'are'}"
