"""Rows of a table as JSON lines: one answer for every line, and a bad line stops no other.

All that is needed is Python: ``plumbline export`` copies this file beside a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

PREDICTION, PROBABILITY = "prediction", "probability_"
"""What the columns are called that are added to a row."""

Entry = dict[str, Any]
Entries = Callable[[dict[str, list[Any]]], Iterable[Entry]]
"""From rows, as cells by column, to what is said of each."""


def answers(stream: Any, names: Sequence[str], entries: Entries) -> Iterator[list[Entry]]:
    """What is said of every line, in order, as soon as it has come.

    Args:
        stream: Of bytes, with a row in each line as a JSON object.
        names: The columns that a row must have; a missing cell is null.
        entries: What is said of rows that can be used. Of others it is what is wrong with them.
    """
    done, rest, piece = 0, b"", b"\n"
    while piece:
        piece = stream.read1(1 << 16)  # what is there: somebody may wait for the answer
        *lines, rest = (rest + piece).split(b"\n")
        if not piece and rest:
            lines = [rest]
        found = [_row(line, names) for line in lines]
        good = [one for one in found if isinstance(one, dict)]
        said = iter(entries({name: [row[name] for row in good] for name in names}) if good else ())
        if found:
            yield [
                {"row": row, **(next(said) if isinstance(one, dict) else {"error": one})}
                for row, one in enumerate(found, done + 1)
            ]
        done += len(found)


def entry(prediction: str, predicted: float | Sequence[float], classes: Sequence[str]) -> Entry:
    """What is said of one row: a class and the probability of each; or a number."""
    if isinstance(predicted, float):
        return {PREDICTION: float(prediction)}
    chances = zip(classes, predicted, strict=True)
    return {PREDICTION: prediction, **{f"{PROBABILITY}{name}": round(p, 6) for name, p in chances}}


def _row(line: bytes, names: Sequence[str]) -> Entry | str:
    """A row, or what is wrong with it, without a word of what is in it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "The line is not JSON." if line.strip() else "The line is empty."
    if not isinstance(row, dict):
        return "The line is no JSON object, such as {" + f'"{names[0]}": ...' + "}."
    if absent := [repr(name) for name in names if name not in row]:
        return f"There is no {', '.join(absent)}; a missing value is null."
    if nested := [repr(name) for name in names if isinstance(row[name], dict | list)]:
        return f"{', '.join(nested)} is no text, number, true, false or null."
    return row
