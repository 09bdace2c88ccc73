"""``plumbline reproduce``: a paper's table or figure beside ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table
from plumbline.cli.compare import stopped
from plumbline.cli.interrupts import stopping
from plumbline.cli.options import Workers
from plumbline.cli.progress import watching
from plumbline.formats import seconds


@app.command(
    epilog=examples(
        "plumbline reproduce --list",
        "plumbline reproduce 004-table-4",
        "plumbline reproduce 004-table-4 --size paper",
    )
)
def reproduce(
    name: Annotated[str | None, typer.Argument(help="One of those that --list shows.")] = None,
    size: Annotated[
        Literal["quick", "paper"], typer.Option(help="A smaller version, or the paper's own.")
    ] = "quick",
    list_: Annotated[
        bool, typer.Option("--list", help="List what can be reproduced, and how long it takes.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where runs are kept, in a folder NAME-SIZE.")] = Path(
        "runs"
    ),
    workers: Workers = None,
    json_: Json = False,
) -> None:
    """Makes a paper's table or figure, with the published numbers beside ours and a verdict."""
    if list_:
        _list(json_)
        return
    if name is None:
        raise WrongUse("Which one? `plumbline reproduce --list` lists them.")
    from plumbline.experiments.reproducing import reproduce as make

    folder = out / f"{name}-{size}"
    with watching("runs") as watch, stopping(lambda: stopped(watch.done, watch.total, folder)):
        found = make(name, size, out, workers=workers, on_progress=watch)
    if json_:
        from plumbline.fairness import to_json

        show_json(to_json(found))
        return
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(str(found)))
    else:
        print(found)
    show(f"In {found.folder}: the runs, and this text as reproduction.md.")


def _list(json_: bool) -> None:
    rows = [{"name": name, **_about(name)} for name in _names()]
    if json_:
        show_json(rows)
        return
    shown = table("name", "what", "quick", "paper")
    shown.columns[1].justify = "left"
    for row in rows:
        minutes = row["minutes"]
        times = (seconds(60 * minutes[size]) if size in minutes else "-" for size in _SIZES)
        shown.add_row(row["name"], row["title"], *times)
    console.print(shown)


_SIZES = ("quick", "paper")


def _names() -> list[str]:
    from plumbline.experiments.papers import names

    return names()


def _about(name: str) -> dict[str, Any]:
    from plumbline.experiments.recipes import folder

    path = folder() / "papers" / f"{name}.toml"
    fields = tomllib.loads(path.read_text(encoding="utf-8"))
    return {"title": fields["title"], "minutes": fields.get("minutes", {})}
