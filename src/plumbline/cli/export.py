"""``plumbline export``: a run's model as a folder that is safe to ship."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline.cli.app import Json, app, console, examples, show, show_json, table
from plumbline.formats import tiny

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plumbline.experiments.exporting import Export


@app.command(
    epilog=examples(
        "plumbline export runs/my/Global-Adapt-*",
        "plumbline export runs/my/Global-Adapt-* --out my-model --with-metrics",
    )
)
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write.", show_default="NAME-model, in this folder"),
    ] = None,
    with_metrics: Annotated[
        bool,
        typer.Option(
            "--with-metrics", help="Put the metrics on the card: epsilon does not cover them."
        ),
    ] = False,
    with_threshold: Annotated[
        bool,
        typer.Option(
            "--with-threshold",
            help="Keep a threshold that was chosen on held-out rows: epsilon does not cover it.",
        ),
    ] = False,
    not_private: Annotated[
        bool,
        typer.Option(
            "--not-private",
            help="Export a model that is not safe to ship as well: no guarantee, a seed, or an "
            "encoding of the rows as they are.",
        ),
    ] = False,
    program: Annotated[
        bool, typer.Option("--program/--no-program", help="Write a torch.export program too.")
    ] = True,
    ledger: Annotated[
        Path | None,
        typer.Option(help="The ledger that the run was charged to, if not in its folder."),
    ] = None,
    json_: Json = False,
) -> None:
    """Writes the model of a run as a folder that is safe to ship, and says why it is.

    The run is verified first. The folder has the weights, the encoding, the statement, a model card
    and a predict.py that needs neither Plumbline nor the run; what epsilon does not cover stays.
    """
    from plumbline.experiments.exporting import export as exported
    from plumbline.instruments.loading import only_run

    found = exported(
        only_run(run),
        out,
        with_metrics=with_metrics,
        with_threshold=with_threshold,
        not_private=not_private,
        program=program,
        ledger=ledger,
    )
    if json_:
        show_json(found)
    else:
        _show(found)


def _show(found: Export) -> None:
    from plumbline.mechanism.rounding import rounded_up

    if found.unsafe:
        show(f"{found.folder} is NOT safe to ship as a private model. {' '.join(found.unsafe)}")
    else:
        but = f", but for {' and '.join(found.asked)}, which you asked for" if found.asked else ""
        show(
            f"{found.folder} is safe to ship: what is in it is public, or covered by epsilon "
            f"{rounded_up(found.epsilon)} at delta {tiny(found.delta)}{but}."
        )
    derived = "" if math.isinf(found.epsilon) else "epsilon was derived again from its ledger, and "
    show(f"The run was verified: {derived}no file was changed since it ended.")
    console.print()
    _files("leaves", "what it is", found.leaves)
    console.print()
    _files("stays", "why", found.stays)
    console.print()
    for words in (*found.notes, *found.spent):
        show(f"- {words}")
    folder = shlex.quote(str(found.folder))
    console.print()
    card = found.folder / "README.md"
    show(f"Read {card} before you ship it: it names the table, its columns and its classes.")
    if "predict.py" in found.leaves:
        show(f"New rows, without Plumbline: python {folder}/predict.py NEW.csv > scored.csv")
        show(f"With it: plumbline predict {folder} --data NEW.csv")


def _files(title: str, words: str, files: Mapping[str, str]) -> None:
    shown = table(title, words, numbers=False)
    for name, why in files.items():
        shown.add_row(name, why)
    console.print(shown)
