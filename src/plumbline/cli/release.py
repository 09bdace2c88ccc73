"""``plumbline release``: marks the model of a run as released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plumbline.cli.app import Json, WrongUse, app, examples, show, show_json


@app.command(
    epilog=examples(
        "plumbline release runs/my/Global-Adapt-*",
        "plumbline release runs/my/Global-Adapt-* --ledger my.ledger   (if the run's is lost)",
    )
)
def release(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    ledger: Annotated[
        Path | None,
        typer.Option(help="A ledger to mark it in, in place of the one that its folder names."),
    ] = None,
    json_: Json = False,
) -> None:
    """Marks a run's model as released, and says what all released models cost together.

    Do so before anybody else gets the model. Exporting it does. Where the table has a limit
    (--limit), a model that would exceed it is refused. A mark stays.
    """
    from plumbline.experiments.files import FileError
    from plumbline.experiments.releasing import mark_released
    from plumbline.experiments.run_spec import runs_in

    try:
        folders = runs_in(run)
        if len(folders) > 1:
            raise WrongUse(
                f"{run} has {len(folders)} runs; give the folder of one, such as {folders[0]}."
            )
        found = mark_released(folders[0], ledger=ledger)
    except FileError as error:
        raise WrongUse(str(error)) from error
    if json_:
        show_json(found.to_json())
        return
    show(f"The model in {folders[0]} is marked as released.")
    for sentence in found.sentences:
        show(sentence)
