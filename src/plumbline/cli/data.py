"""``plumbline data``: which data sets there are, getting them, and the schema of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table

data_app = typer.Typer(help="The data sets: which there are, how to get them, and your own.")
app.add_typer(data_app, name="data", no_args_is_help=True)


def _data_starting(incomplete: str) -> list[str]:
    from plumbline.data.base import FILES

    return [name for name in FILES if name.startswith(incomplete)]


@data_app.command("list", epilog=examples("plumbline data list", "plumbline data list --json"))
def data_list(json_: Json = False) -> None:
    """Lists the data sets, and which files of each are there."""
    from plumbline.data import data_folder
    from plumbline.data.base import FILES

    root = data_folder()
    rows = {
        name: {"files": len(files), "there": sum((root / f.path).is_file() for f in files)}
        for name, files in sorted(FILES.items())
    }
    if json_:
        show_json({"folder": str(root), "data": rows})
        return
    shown = table("data set", "files there")
    for name, row in rows.items():
        own = "your own" if name == "image-folder" else "bundled"
        shown.add_row(name, f"{row['there']} of {row['files']}" if row["files"] else own)
    console.print(shown)
    show(f"Data folder: {root} (set PLUMBLINE_DATA for another).")


@data_app.command("get", epilog=examples("plumbline data get mnist"))
def data_get(
    name: Annotated[
        str, typer.Argument(help="Its name, as in `data list`.", autocompletion=_data_starting)
    ],
    json_: Json = False,
) -> None:
    """Downloads what is missing of a data set, and compares the published checksums."""
    from plumbline.data import get
    from plumbline.data.base import FILES
    from plumbline.experiments.recipe import require_known

    require_known("data set", name, list(FILES))
    paths = get(name, progress=not json_)
    if json_:
        show_json({"data": name, "files": [str(path) for path in paths]})
        return
    if not paths:
        show(f"'{name}' comes with the package; there is nothing to download.")
    for path in paths:
        console.print(str(path), highlight=False, soft_wrap=True, markup=False)


@data_app.command(
    "schema",
    epilog=examples(
        "plumbline data schema my.csv",
        "plumbline train --data my.csv --target income --schema my.schema.toml",
    ),
)
def data_schema(
    path: Annotated[Path, typer.Argument(help="A csv or parquet file.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="my.schema.toml")
    ] = None,
    from_data: Annotated[
        bool,
        typer.Option(
            "--from-data", help="Write down what the rows hold, as it is: check each line."
        ),
    ] = False,
) -> None:
    """Writes a file to declare the ranges, categories and number of rows of a table in.

    It has the names of the columns and whether most cells of each are numbers; with --from-data
    also what the rows hold. No epsilon covers that: whatever you leave of it is taken to be public.
    """
    from plumbline.data.tables import described
    from plumbline.experiments.files import write_text

    file = path.with_suffix(".schema.toml") if out is None else out
    if file.exists():
        raise WrongUse(f"{file} is there already; give another file with --out, or delete it.")
    write_text(file, described(path, from_data=from_data).toml(path.name))
    what = "What it says" if from_data else "Which columns hold numbers"
    show(f"The schema is in {file}: fill it in, and give it with --schema {file}.")
    show(f"{what} was read from the rows as they are: leave only what may be known to everybody.")
