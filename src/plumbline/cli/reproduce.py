"""``plumbline reproduce``: a paper's table or figure beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table
from plumbline.cli.interrupts import ending_with_its_part, stopping
from plumbline.cli.options import Shard, Workers
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
    shard: Shard = None,
    json_: Json = False,
) -> None:
    """Makes a paper's table or figure, with the published numbers beside ours and a verdict."""
    if list_:
        _list(json_)
        return
    if name is None:
        raise WrongUse("Which one? `plumbline reproduce --list` lists them.")
    from plumbline.experiments.reproducing import reproduce as make

    with ending_with_its_part(), watching() as watch, stopping(watch, out / f"{name}-{size}"):
        found = make(name, size, out, workers=workers, shard=shard, on_progress=watch)
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
    from plumbline.experiments.papers import names, read

    plans = {name: read(name)[0] for name in names()}
    if json_:
        facts = [{"title": plan.title, "minutes": plan.minutes} for plan in plans.values()]
        show_json([{"name": name, **one} for name, one in zip(plans, facts, strict=True)])
        return
    shown = table("name", "what", "quick", "paper")
    shown.columns[1].justify = "left"
    for name, plan in plans.items():
        times = {size: seconds(60 * minutes) for size, minutes in plan.minutes.items()}
        shown.add_row(name, plan.title, times.get("quick", "-"), times.get("paper", "-"))
    console.print(shown)
