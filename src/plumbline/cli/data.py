"""``plumbline data``: which data sets there are, getting them, and a look at a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table
from plumbline.cli.table_options import (
    BY_HEADER,
    DECIMAL,
    ENCODING,
    SEPARATOR,
    csv_form,
    names_in,
    one_target,
)

if TYPE_CHECKING:
    from plumbline.data import TableLook

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
    from plumbline.experiments.settings import require_known

    require_known("data set", name, list(FILES))
    paths = get(name, progress=not json_)
    if json_:
        show_json({"data": name, "files": [str(path) for path in paths]})
        return
    if not paths:
        show(f"'{name}' comes with the package; there is nothing to download.")
    for path in paths:
        console.print(str(path), highlight=False, soft_wrap=True)


Encoding = Annotated[str, typer.Option(help=ENCODING)]
Separator = Annotated[str | None, typer.Option(help=SEPARATOR, show_default=BY_HEADER)]
Decimal = Annotated[str, typer.Option(help=DECIMAL)]


@data_app.command(
    "look",
    epilog=examples(
        "plumbline data look my.csv --target income --sensitive sex",
        "plumbline data look my.csv --target income --json",
    ),
)
def data_look(
    path: Annotated[Path, typer.Argument(help="A csv or parquet file.")],
    target: Annotated[list[str] | None, typer.Option(help="The column to predict.")] = None,
    sensitive: Annotated[
        list[str] | None, typer.Option(help="Columns whose groups are reported.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Columns to leave out.")] = None,
    missing_value: Annotated[
        list[str] | None, typer.Option(help="What a missing cell says, beside nothing.")
    ] = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    decimal: Decimal = ".",
    json_: Json = False,
) -> None:
    """Shows what each column of a table was taken for, what stands in its way, and what to do.

    This is a look at the rows as they are, by whoever holds them: what it shows is not for release.
    It trains nothing and charges nothing.
    """
    from plumbline.data.table_look import look_at
    from plumbline.data.table_tally import KEPT

    predicted = one_target(target) if target else None
    seen = look_at(
        path,
        form=csv_form(encoding, separator, decimal),
        target=predicted,
        sensitive=names_in(sensitive or ()),
        drop=names_in(drop or ()),
        missing_values=("", *(missing_value or ())),
    )
    words, declare = _found_privately(seen)
    command = None if seen.stuck else " ".join([seen.command, *declare])
    if json_:
        columns = [{name: getattr(one, name) for name in _SHOWN} for one in seen.columns]
        facts = {"rows": seen.rows, "classes": dict(seen.classes), "columns": columns}
        show_json({**facts, "problems": list(seen.problems), "command": command})
        return
    shown = table("column", "taken for", "different", "missing", "what is wrong, and what to do")
    for place, justify in ((1, "left"), (4, "left")):
        shown.columns[place].justify = justify  # type: ignore[assignment]
    for one in seen.columns:
        different = f">{KEPT:,}" if one.different is None else f"{one.different:,}"
        missing = f"{100 * one.missing / seen.rows:.1f} %" if one.missing else ""
        wrong = f"{one.wrong[:1].upper()}{one.wrong[1:]}. {one.advice}" if one.wrong else ""
        kind = "groups" if one.name in seen.sensitive else one.kind
        kind = "target" if one.name == predicted else kind
        shown.add_row(one.name or "''", kind, different, missing, wrong)
    console.print(shown)
    for problem in seen.problems:
        show(problem)
    if seen.classes:
        shares = [f"{name} {100 * n / seen.rows:.1f} %" for name, n in seen.classes.items()]
        if len(shares) > _CLASSES:
            shares[_CLASSES:] = [f"or one of {len(shares) - _CLASSES:,} others"]
        show(f"Of {seen.rows:,} rows, {predicted} is {', '.join(shares)}.")
    else:
        show(f"{seen.rows:,} rows.")
    if words:
        show(words)
    show("This was read from the rows as they are: it is for your eyes, and not for release.")
    console.print()
    if command is None:
        show(
            "No option mends all of this: mend the table, or choose other columns, and look again."
        )
        return
    blanks = [] if target else ["with the column to predict"]
    blanks += ["with the table's own values for A,B"] if declare else []
    show(f"{', '.join(['To go on', *blanks])}:")
    console.print(command, highlight=False, soft_wrap=True)


def _found_privately(seen: TableLook) -> tuple[str, list[str]]:
    """How many rows must have a value for the proposed command to find it, and what to declare.

    Without that it would stop after it has paid for the search. Nothing public tells so
    beforehand; a look may.
    """
    from plumbline.data import DataError, Schema
    from plumbline.data.table_plan import plan_table
    from plumbline.data.table_schema import CATEGORY, DATE, Column
    from plumbline.experiments.private_schema import SchemaQuestion
    from plumbline.experiments.schema_checks import declaring, least_rows, stopping
    from plumbline.formats import listed
    from plumbline.instruments.describing import DELTA, EPSILON

    drop = [value for one in seen.columns for option, value in one.options if option == "--drop"]
    drop += seen.drop
    sure = {
        one.name: one.column
        for one in seen.columns
        if one.name not in drop and (one.column.complete or one.column.kind == DATE)
    }
    if seen.target is None or seen.stuck:
        return "", []
    read = {**seen.options, **seen.given}
    form: dict[str, Any] = {option.strip("-"): value for option, value in read.items()}
    try:
        plan = plan_table(
            seen.path,
            target=seen.target,
            sensitive=seen.sensitive,
            schema=Schema(sure),
            drop=[name for name in drop if name not in (seen.target, *seen.sensitive)],
            **form,
        )
    except DataError:
        return "", []
    question = SchemaQuestion.about(plan, epsilon=EPSILON, delta=DELTA)
    if question is None or not question.asked:
        return "", []
    least = {name: least_rows(plan, question, name) for name in question.asked}
    needed = float(f"{max(least.values()):.2g}")
    words = (
        f"What you do not declare is found privately, at epsilon {EPSILON:g} if some {needed:,.0f} "
        "training rows have it"
    )
    if plan.training_share * seen.rows < 2 * needed:
        return (
            f"{words}: this table is too small for that. Declare it (`plumbline data schema` "
            "writes a file to fill in), or take it from the rows (--from-data), which epsilon does "
            "not cover."
        ), []
    words += "; `plumbline data schema` writes a file to declare it in."
    hidden = [
        one.name
        for one in seen.columns
        if one.name in least
        and one.column.kind == CATEGORY
        and one.most is not None
        and plan.training_share * one.most < least[one.name]
    ]
    stops = stopping(plan, hidden)
    if hidden:
        end = "stops once that is paid for" if stops else "goes on without"
        words += f" No value of {listed(hidden)} has so many: declare them, or the run {end}."
    return words, [declaring(name, Column()) for name in stops]


_CLASSES = 8  # of which a look names the shares
_SHOWN = ("name", "kind", "missing", "different", "wrong", "advice", "options")


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
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    decimal: Decimal = ".",
) -> None:
    """Writes a file to declare the ranges, categories and number of rows of a table in.

    It has the names of the columns and their kinds, as `plumbline data look` takes them; with
    --from-data also what the rows hold. No epsilon covers that: whatever you leave of it is taken
    to be public.
    """
    from plumbline.data.tables import described
    from plumbline.experiments.files import write_text

    file = path.with_suffix(".schema.toml") if out is None else out
    if file.exists():
        raise WrongUse(f"{file} is there already; give another file with --out, or delete it.")
    form = csv_form(encoding, separator, decimal)
    write_text(file, described(path, from_data=from_data, form=form).toml(path.name))
    what = "What it says" if from_data else "What each column holds"
    show(f"The schema is in {file}: fill it in, and give it with --schema {file}.")
    show(f"{what} was read from the rows as they are: leave only what may be known to everybody.")
