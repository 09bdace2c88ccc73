"""How an exported model is used, in Markdown: a part of its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plumbline.data import TableEncoding
from plumbline.data.table_columns import Categorical, Column, Dated, Hashed, Numeric
from plumbline.data.table_dates import iso
from plumbline.experiments.deciding import threshold_words
from plumbline.formats import cell, markdown

_SHOWN = 10  # categories of a column

_COMMANDS = """\
`predict.py` needs torch and numpy, and not Plumbline:

```bash
python predict.py new.csv > scored.csv
python predict.py - < rows.jsonl > scored.jsonl   # one JSON object a line: {{"column": value, ...}}
```

There is a line for every row, and a missing cell is filled as in training. {reads} With Plumbline:

```python
import plumbline as pl

model = pl.load("this folder")
print(model.decide(model.predict(frame)))  # of a pandas DataFrame
```
"""
_TENSORS = """\
The run was not made on a table, so that there is no `predict.py`. With Plumbline,
`plumbline.load("this folder").predict(x)` takes what the network takes.
"""


def how_to_use(
    settings: Mapping[str, Any], encoding: TableEncoding | None, *, program: bool, chosen: bool
) -> str:
    """What the model predicts, of which columns, and the commands.

    Args:
        settings: Of the export's ``model.json``.
        encoding: How its rows become numbers.
        program: Whether there is a torch.export program.
        chosen: Whether the run has a threshold that was chosen on held-out rows.
    """
    parts = list(_parts(settings, encoding, program, chosen))
    return "\n\n".join(part.strip() for part in parts)


def _parts(
    settings: Mapping[str, Any], encoding: TableEncoding | None, program: bool, chosen: bool
) -> Iterator[str]:
    if reference := settings["network"].get("reference"):
        yield f"**It needs the package of its network, `{reference}`, which is not in here.**"
    if encoding is None:
        yield _TENSORS
    else:
        kind = f"number within {_range(*encoding.target_range)}" if encoding.target_range else ""
        what = kind or f"class: {', '.join(encoding.classes)}"
        yield f"It predicts **{cell(encoding.target)}**, a {cell(what)}."
        form = encoding.form
        yield _COMMANDS.format(
            reads=f"A csv file is read as the one that was learned from: {form.encoding}, numbers "
            f"with a decimal {'comma' if form.decimal == ',' else 'point'}."
        )
        rows = [[cell(one.name), cell(_words(one))] for one in encoding.columns]
        yield markdown(["column", "holds"], rows)
    if settings["threshold"] is not None:
        words = threshold_words(settings["threshold"], settings["classes"], chosen=chosen)
        yield cell(f"{words} Epsilon does not cover that choice." if chosen else words)
    elif chosen:
        yield (
            "The more probable class is predicted. The run has a threshold that was chosen on "
            "held-out rows; epsilon does not cover it, and it was left out."
        )
    if program:
        yield (
            "`model.pt2` is a torch.export program of what follows the encoding, for other tools. "
            "torch unpickles such files: load it only if you trust where this folder comes from. "
            "Neither `predict.py` nor Plumbline reads it."
        )


def _words(column: Column) -> str:
    match column:
        case Numeric():
            return f"a number, {_range(column.low, column.high)}"
        case Dated():
            return f"a date ({column.order}), {iso(column.low)} to {iso(column.high)}"
        case Categorical():
            many = len(column.categories) - _SHOWN
            more = f" and {many:,} more" if many > 0 else ""
            cut = f"its first {column.prefix} characters, " if column.prefix else ""
            return f"{cut}one of {', '.join(column.categories[:_SHOWN])}{more}; or another"
        case Hashed():
            cut = f", of which {column.prefix} characters count" if column.prefix else ""
            return f"a code{cut}"
    return "text"


def _range(low: float, high: float) -> str:
    return f"{low:g} to {high:g}"
