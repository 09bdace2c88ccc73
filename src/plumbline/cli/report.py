"""``plumbline report``: the page of a comparison or of a run."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show_json


@app.command(
    epilog=examples(
        "plumbline report runs/demo",
        "plumbline report runs/demo --open",
        "plumbline report runs/my/Global-Adapt-*   (a run of train --data)",
    ),
)
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a comparison, or of a run.")],
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    json_: Json = False,
) -> None:
    """Writes the page of a comparison or a run: figures, tables and the verdict, in one file."""
    if not folder.is_dir():
        raise WrongUse(f"There is no folder {folder}; give the one that `compare` has written.")
    from plumbline.report import write

    page = Path(write(folder))
    if json_:
        show_json({"page": str(page)})
    else:
        console.print(str(page), highlight=False, soft_wrap=True)
    if open_:
        webbrowser.open(page.resolve().as_uri())
