"""``plumbline predict``: what the model of a run on a table says of new rows."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, note, show, show_json, table

if TYPE_CHECKING:
    from torch import nn

    from plumbline.data import TableEncoding
    from plumbline.data.table_encoding import Column
    from plumbline.data.table_files import Table

PREDICTION, PROBABILITY = "prediction", "probability_"


@app.command(
    epilog=examples(
        "plumbline predict runs/my/Global-Adapt-* --data new.csv",
        "plumbline predict runs/my/Global-Adapt-* --data new.parquet --out scored.csv",
    )
)
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run on a table.")],
    data: Annotated[
        Path, typer.Option(help="A csv or parquet file with the columns that it learned from.")
    ],
    out: Annotated[Path, typer.Option(help="The csv file to write.")] = Path("predictions.csv"),
    missing: Annotated[
        Literal["error", "drop", "fill"],
        typer.Option(help="What to do with rows that lack a value."),
    ] = "error",
    json_: Json = False,
) -> None:
    """Writes the rows of a table with the class that the model predicts, and its probabilities.

    A category that the model does not know counts as one of all others, and a number outside its
    range as the nearer end, as in training; it is said where that happens. The column of the
    classes need not be there, and is not looked at.
    """
    from plumbline.data import DataError
    from plumbline.data.table_files import open_table

    if out.resolve() == data.resolve():
        raise WrongUse(f"--out is {out}, the data itself; give another file.")
    model, encoding = _trained(run)
    try:
        rows = open_table(data)
        taken = [name for name in _added(encoding) if name in rows.names]
        if taken:
            raise WrongUse(f"{data} has a column '{taken[0]}' already; rename it, or leave it out.")
        counts, unseen = _write(out, model, encoding, rows, missing)
    except DataError as error:
        raise WrongUse(str(error)) from error
    said = {one.name: _said(one, unseen[one.name]) for one in encoding.columns if unseen[one.name]}
    if json_:
        predicted = {name: counts[name] for name in encoding.classes}
        found = {"out": str(out), "rows": counts.total(), "predicted": predicted, "unseen": said}
        show_json(found)
        return
    for words in said.values():
        note(words)
    shown = table("predicted", "rows")
    for name in encoding.classes:
        shown.add_row(name, f"{counts[name]:,}")
    console.print(shown)
    show(f"{counts.total():,} rows, with the probability of each class, are in {out}.")


def _trained(folder: Path) -> tuple[nn.Module, TableEncoding]:
    """The model of a finished run, and how rows become what it sees."""
    from plumbline.experiments.files import ENCODING, FileError
    from plumbline.instruments import load

    found = load(folder)
    if found.encoding is None:
        raise WrongUse(
            f"{found.folder} has no {ENCODING}: the run was not made on a table. In Python, "
            "plumbline.load(folder).predict(x) takes what its model takes."
        )
    options = found.result.model["options"]
    sizes = {"features": len(found.encoding.features), "classes": len(found.encoding.classes)}
    if any(options.get(name, size) != size for name, size in sizes.items()):
        raise FileError(
            f"{found.folder / ENCODING} has {sizes['features']} features and {sizes['classes']} "
            f"classes, and the network {options.get('features')} and {options.get('classes')}: it "
            "is not of this run. `plumbline verify` says which file was changed."
        )
    return found.model, found.encoding


def _write(
    out: Path,
    model: nn.Module,
    encoding: TableEncoding,
    rows: Table,
    missing: Literal["error", "drop", "fill"],
) -> tuple[Counter[str], Counter[str]]:
    """Writes all rows; how many are of each class, and how many cells of each column unseen."""
    import torch

    from plumbline import durable
    from plumbline.experiments.files import FileError
    from plumbline.without_trace import evaluating

    counts: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    try:
        with (
            durable.replacing(out) as descriptor,
            open(descriptor, "w", encoding="utf-8", newline="", closefd=False) as stream,
            evaluating(model),
            torch.no_grad(),
        ):
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([*rows.names, *_added(encoding)])
            for chunk, x in encoding.pieces(rows, missing=missing):
                chances = model(x).double().softmax(1)
                predicted = [encoding.classes[place] for place in chances.argmax(1).tolist()]
                counts.update(predicted)
                for one in encoding.columns:
                    unseen[one.name] += one.unseen(chunk.columns[one.name])
                numbers = ([f"{p:.6f}" for p in row] for row in chances.tolist())
                cells = zip(*(chunk.columns[name] for name in rows.names), strict=True)
                for given, name, row in zip(cells, predicted, numbers, strict=True):
                    writer.writerow([*given, name, *row])
    except OSError as error:
        why = f"{error.strerror}. {durable.advice(error)}"
        raise FileError(f"Cannot write {out}: {why}.") from error
    return counts, unseen


def _added(encoding: TableEncoding) -> list[str]:
    """The columns that are written beside those of the rows."""
    return [PREDICTION, *(f"{PROBABILITY}{name}" for name in encoding.classes)]


def _said(column: Column, count: int) -> str:
    """What was done with ``count`` cells that no training row had."""
    from plumbline.data.table_encoding import Numeric

    start = f"{column.name}: {count:,} {'row has' if count == 1 else 'rows have'} "
    if isinstance(column, Numeric):
        where = f"outside {column.low:g} to {column.high:g}"
        return f"{start}a number {where}; it is taken as the nearer end."
    return f"{start}a category that the model does not know; it counts as another."
