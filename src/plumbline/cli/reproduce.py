"""``plumbline reproduce``: a paper's table or figure beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table
from plumbline.cli.interrupts import ending_with_its_part, stopping
from plumbline.cli.options import Ray, Shard, Workers
from plumbline.cli.progress import watching
from plumbline.formats import seconds

if TYPE_CHECKING:
    from plumbline.experiments.reproducing import Reproduction


@app.command(
    epilog=examples(
        "plumbline reproduce --list",
        "plumbline reproduce 004-table-4",
        "plumbline reproduce 004-table-4 --size paper",
        "plumbline reproduce --all --size answer --hours 8",
    )
)
def reproduce(
    name: Annotated[str | None, typer.Argument(help="One of those that --list shows.")] = None,
    size: Annotated[
        Literal["quick", "answer", "paper"],
        typer.Option(help="A smaller version, the smallest that can answer, or the paper's own."),
    ] = "quick",
    list_: Annotated[
        bool, typer.Option("--list", help="List what can be reproduced, and how long it takes.")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="All that fit into --hours, most valuable first.")
    ] = False,
    hours: Annotated[
        float | None, typer.Option(min=0, help="With --all: how long. Run it again to go on.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept, in a folder NAME-SIZE.")] = Path(
        "runs"
    ),
    workers: Workers = None,
    shard: Shard = None,
    ray: Ray = None,
    json_: Json = False,
) -> None:
    """Makes a paper's table or figure, with the published numbers beside ours and a verdict."""
    if list_:
        _list(json_)
        return
    if all_ != (hours is not None) or (all_ and name is not None):
        raise WrongUse("--all and --hours belong together, without a name: --all --hours 8.")
    if all_ and (shard or ray) is not None:
        raise WrongUse("--shard and --ray make one reproduction: give its name instead of --all.")
    if not all_ and name is None:
        raise WrongUse("Which one? `plumbline reproduce --list` lists them.")
    from plumbline.experiments.reproducing import reproduce as make
    from plumbline.experiments.reproducing import reproduce_all

    place = out if name is None else out / f"{name}-{size}"
    with ending_with_its_part(), watching() as watch, stopping(watch, place):
        if name is not None:
            chosen = make(name, size, out, workers=workers, shard=shard, ray=ray, on_progress=watch)
            found = {name: chosen}
        else:
            made = reproduce_all(size, hours or 0, out, workers=workers, on_progress=watch)
            found = {one.name: one for one in made}  # each after the last of its seeds
    if json_:
        from plumbline.fairness import to_json

        shown = [to_json(one) for one in found.values()]
        show_json(shown if name is None else shown[0])
        return
    if not found:
        show(f"Nothing of the size {size!r} fits into {hours:g} hours; --list has the times.")
    for one in found.values():
        _print(one)


def _print(found: Reproduction) -> None:
    from plumbline.experiments.reproduction_text import section

    text = section(found)
    if console.is_terminal:
        from rich.markdown import Markdown

        console.print(Markdown(text))
    else:
        print(text)
    show(f"In {found.folder}: the runs, and what was measured as reproduction.json.")


def _list(json_: bool) -> None:
    from plumbline.experiments.papers import SIZES, names, read

    plans = {name: read(name)[0] for name in names()}
    if json_:
        facts = [{"title": plan.title, "minutes": plan.minutes} for plan in plans.values()]
        show_json([{"name": name, **one} for name, one in zip(plans, facts, strict=True)])
        return
    shown = table("name", "what", *SIZES)
    shown.columns[1].justify = "left"
    for name, plan in plans.items():
        times = {size: seconds(60 * minutes) for size, minutes in plan.minutes.items()}
        shown.add_row(name, plan.title, *(times.get(size, "-") for size in SIZES))
    console.print(shown)
