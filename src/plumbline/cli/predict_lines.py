"""``plumbline predict --data -``: rows as JSON lines, each answered by a JSON line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Literal

from plumbline.cli.app import note

if TYPE_CHECKING:
    from plumbline.instruments import Loaded

Missing = Literal["fill", "blank", "error"]
"""What is done with a row that lacks a value."""


def answer_lines(found: Loaded, missing: Missing) -> None:
    """Answers every line of standard input, at once and in order; bad ones by an error."""
    from plumbline.data.json_rows import PREDICTION, Entry, answers, entry
    from plumbline.data.table_files import TableChunk

    encoding = found.encoding
    assert encoding is not None

    def entries(rows: dict[str, list[Any]]) -> list[Entry]:
        cells = {name: encoding.texts(name, column) for name, column in rows.items()}
        chunk = TableChunk(cells, range(len(next(iter(cells.values())))))
        lacking = {} if missing == "fill" else dict(encoding.lacking(chunk))
        predicted = found.predict(encoding.encode(chunk))
        said: list[Entry] = []
        for place, text in enumerate(found.decide(predicted)):
            if place not in lacking:
                said.append(entry(text, predicted[place].tolist(), found.classes))
            elif missing == "blank":
                said.append({PREDICTION: None})
            else:
                said.append({"error": f"'{lacking[place]}' has no value, or none of its kind."})
        return said

    done = bad = 0
    for piece in answers(sys.stdin.buffer, [one.name for one in encoding.columns], entries):
        print(*map(json.dumps, piece), sep="\n", flush=True)
        done, bad = done + len(piece), bad + sum("error" in one for one in piece)
    if bad:
        note(f"{bad:,} of {done:,} rows have an error.")
