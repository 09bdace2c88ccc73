"""``plumbline predict``: what a model of a table says of new rows, of a run or an export."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, note, show, show_json, table
from plumbline.cli.predict_lines import Missing, answer_lines
from plumbline.cli.table_options import csv_form

if TYPE_CHECKING:
    from plumbline.data import TableEncoding
    from plumbline.data.table_files import Table
    from plumbline.instruments import Loaded


@app.command(
    epilog=examples(
        "plumbline predict runs/my/Global-Adapt-* --data new.csv",
        "plumbline predict my-model --data new.parquet --out scored.csv   (an export)",
        "plumbline predict my-model --data - < rows.jsonl > scored.jsonl",
    )
)
def predict(
    run: Annotated[
        Path, typer.Argument(help="The folder of a finished run on a table, or of its export.")
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="A csv or parquet file with the columns that it learned from; or - for JSON lines "
            "on standard input, which are answered by JSON lines."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The csv file to write.", show_default="predictions.csv")
    ] = None,
    missing: Annotated[
        Missing,
        typer.Option(
            help="Rows that lack a value: fill it, leave the prediction blank, or stop (of JSON "
            "lines: say so of the row)."
        ),
    ] = "fill",
    encoding: Annotated[
        str | None, typer.Option(help="Of a csv file.", show_default="as in training")
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="Of a csv file.", show_default="as the header shows")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Of a csv file.", show_default="as in training")
    ] = None,
    json_: Json = False,
) -> None:
    """Writes each row of a table with the class that the model predicts, and its probabilities.

    There is a row for every row that was given. Of a model that predicts a number, that is
    written. A threshold of the run decides here too.

    A category that the model does not know counts as one of all others, and a number outside its
    range as the nearer end, as in training; it is said where that happens. The column of the
    classes need not be there, and is not looked at. The file that is written has commas, points and
    UTF-8, whatever was read.
    """
    from plumbline.data import DataError
    from plumbline.data.table_files import open_table

    if str(data) == "-":
        if out is not None or json_:
            raise WrongUse(
                "Rows on standard input are answered by JSON lines on standard output; leave "
                f"{'--json' if json_ else '--out'} out."
            )
        answer_lines(_trained(run), missing)
        return
    out = out or Path("predictions.csv")
    if out.resolve() == data.resolve():
        raise WrongUse(f"--out is {out}, the data itself; give another file.")
    found = _trained(run)
    made = found.encoding
    assert made is not None
    try:
        like = made.form
        form = csv_form(encoding or like.encoding, separator, decimal or like.decimal)
        rows = open_table(data, form)
        taken = [name for name in _added(made) if name in rows.names]
        if taken:
            raise WrongUse(f"{data} has a column '{taken[0]}' already; rename it, or leave it out.")
        done = _write(out, found, made, rows, missing)
    except DataError as error:
        raise WrongUse(str(error)) from error
    columns = {one.name: one for one in made.columns}
    said = {name: columns[name].said_of(_rows(name, n)) for name, n in done.unseen.items() if n}
    if json_:
        predicted = {name: done.predicted[name] for name in made.classes}
        facts = {"out": str(out), "rows": done.rows, "predicted": predicted, "unseen": said}
        show_json({**facts, "missing": dict(done.missing), "blank": done.blank})
        return
    for words in said.values():
        note(words)
    if missing == "fill":
        for name, count in done.missing.items():
            note(f"{_rows(name, count)} no value, or none of its kind; it is filled.")
    if made.target_range is not None:
        blank = f"; {done.blank:,} predictions are blank" if done.blank else ""
        show(f"{done.rows:,} rows, with the predicted {made.target}, are in {out}{blank}.")
        return
    shown = table("predicted", "rows")
    for name in made.classes:
        shown.add_row(name, f"{done.predicted[name]:,}")
    if done.blank:
        shown.add_row("(blank)", f"{done.blank:,}")
    console.print(shown)
    show(f"{done.rows:,} rows, with the probability of each class, are in {out}.")


def _trained(folder: Path) -> Loaded:
    """A model of which it is known how rows become what it sees."""
    from plumbline.experiments.files import ENCODING
    from plumbline.instruments import load

    found = load(folder)
    if found.encoding is None:
        raise WrongUse(
            f"{found.folder} has no {ENCODING}: the run was not made on a table. In Python, "
            "plumbline.load(folder).predict(x) takes what its model takes."
        )
    return found


@dataclass
class _Done:
    """What was written: rows by class, and cells by column that are unseen or missing."""

    predicted: Counter[str] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    blank: int = 0


def _write(
    out: Path,
    found: Loaded,
    encoding: TableEncoding,
    rows: Table,
    missing: Missing,
) -> _Done:
    """Writes all rows."""
    import torch

    from plumbline import durable
    from plumbline.experiments.files import FileError
    from plumbline.without_trace import evaluating

    done, added = _Done(), _added(encoding)
    try:
        with (
            durable.replacing(out) as descriptor,
            open(descriptor, "w", encoding="utf-8", newline="", closefd=False) as stream,
            evaluating(found.model),
            torch.no_grad(),
        ):
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([*rows.names, *added])
            for chunk, x in encoding.pieces(
                rows, missing="error" if missing == "error" else "fill"
            ):
                chances = found.predict(x)
                predicted = found.decide(chances)
                lacking = encoding.lacking(chunk)
                blank = {place for place, _ in lacking} if missing == "blank" else set()
                done.missing.update(name for _, name in lacking)
                done.rows, done.blank = done.rows + len(chunk), done.blank + len(blank)
                for one in encoding.columns:
                    done.unseen[one.name] += one.unseen(chunk.columns[one.name], encoding.gaps)
                cells = zip(*(chunk.columns[name] for name in rows.names), strict=True)
                own = zip(predicted, chances.tolist(), strict=True)
                for row, (given, (name, values)) in enumerate(zip(cells, own, strict=True)):
                    if row in blank:
                        writer.writerow([*given, *("" for _ in added)])
                        continue
                    numbers = [f"{p:.6f}" for p in values] if encoding.classes else []
                    done.predicted[str(name)] += 1
                    writer.writerow([*given, name, *numbers])
    except OSError as error:
        why = f"{error.strerror}. {durable.advice(error)}"
        raise FileError(f"Cannot write {out}: {why}.") from error
    return done


def _added(encoding: TableEncoding) -> list[str]:
    """The columns that are written beside those of the rows."""
    from plumbline.data.json_rows import PREDICTION, PROBABILITY

    return [PREDICTION, *(f"{PROBABILITY}{name}" for name in encoding.classes)]


def _rows(name: str, count: int) -> str:
    return f"{name}: {count:,} {'row has' if count == 1 else 'rows have'}"
