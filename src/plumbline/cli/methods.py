"""``plumbline methods``: which methods there are, and what each of them takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from plumbline.cli.app import Json, app, console, examples, show, show_json, table
from plumbline.cli.options import methods_starting

if TYPE_CHECKING:
    from plumbline.methods.registry import Row

_ROOMY = 116  # columns of a terminal in which the whole table fits


@app.command(
    epilog=examples(
        "plumbline methods",
        "plumbline methods global-adapt",
        "plumbline methods --json",
    )
)
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="One method: its settings too.", autocompletion=methods_starting),
    ] = None,
    json_: Json = False,
) -> None:
    """Lists the methods: paper and equation, questions asked of the data, passes, needs."""
    from plumbline.methods import table as rows_of_methods

    rows = rows_of_methods()
    if name is not None:
        from plumbline.methods import find

        _one(next(row for row in rows if row.name == find(name).name), json_)
        return
    if json_:
        show_json([vars(row) for row in rows])
        return
    roomy = console.width >= _ROOMY
    titles = ["asks", "keeps"] if roomy else []
    shown = table("method", "paper, equation", *titles, "passes", "needs", "private", numbers=False)
    for row in rows:
        more = [row.queries, row.keeps] if roomy else []
        private = "yes" if row.guarantee == "yes" else "no"
        style = None if private == "yes" else "dim"
        cells = [row.name, row.source, *more, str(row.passes), row.needs, private]
        shown.add_row(*cells, style=style)
    console.print(shown)
    show(
        ("asks: what noise is added to in every step, and paid for. " if roomy else "")
        + "passes: of the batch through the model, forward and backward, in a step. private: "
        "whether epsilon is finite; the others are baselines. `plumbline methods NAME` has one "
        "method's settings."
    )


def _one(row: Row, json_: bool) -> None:
    from plumbline.methods import METHODS
    from plumbline.registry import options_of

    make = METHODS[row.name].make
    settings = {
        name: None if one.default is one.empty else one.default
        for name, one in options_of(make).items()
    }
    about = inspect.getdoc(make) or ""
    if json_:
        plain = (str, int, float, list, tuple, type(None))
        shown = {k: v if isinstance(v, plain) else repr(v) for k, v in settings.items()}
        show_json({**vars(row), "about": about, "settings": shown})
        return
    console.print(Text.assemble((row.name, "bold"), f" ({row.source})"))
    console.print(about, highlight=False)
    facts = table("", "", numbers=False)
    facts.show_header = False
    facts.add_row("asks in each step", row.queries)
    facts.add_row("passes of a step", str(row.passes))
    facts.add_row("keeps between steps", row.keeps or "nothing")
    facts.add_row("needs", row.needs or "nothing more")
    facts.add_row("guarantee", row.guarantee)
    console.print(facts)
    if settings:
        values = table("setting", "default", numbers=False)
        for name, one in options_of(make).items():
            values.add_row(name, "must be given" if one.default is one.empty else repr(one.default))
        console.print(values)
