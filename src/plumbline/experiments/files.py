"""Files of a run's folder: written whole or not at all, and rows that are appended along a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is whole or not there."""
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON so that the file is whole or not there."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends a row to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines that belong to a step; none if there is no such file."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break  # the last line of a run that was killed
        if "step" in row:
            rows.append(row)
    return rows


def kept_rows(
    path: Path, steps: int, head: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The rows up to a checkpoint; the file has only ``head`` and them afterwards.

    What lies beyond the checkpoint that a run goes on from comes again.
    """
    rows = [row for row in read_rows(path) if row["step"] <= steps]
    if rows or head or path.is_file():
        write_text(path, "".join(json.dumps(row) + "\n" for row in (*head, *rows)))
    return rows


def finite(value: float) -> float | str:
    """JSON has no infinity: as a word."""
    return "inf" if math.isinf(value) else value
