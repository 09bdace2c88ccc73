"""``plumbline data``: which data sets there are, and getting them."""

from __future__ import annotations

from typing import Annotated

import typer

from plumbline.cli.app import Json, app, console, examples, show, show_json, table

data_app = typer.Typer(help="The data sets: which there are, and how to get them.")
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
