"""Files of a run's folder: their names; written whole or not at all; rows appended along a run.

Guarantee: once ``write_text`` or another of these has returned, the content is on the disk; if it
fails (a full disk, a folder that is read-only), what was at the path before is as it was.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plumbline import durable

RECIPE, VERSIONS = "recipe.json", "versions.json"
METRICS, CHECKPOINT, MODEL = "metrics.jsonl", "checkpoint.pt", "model.pt"
LOG = "log.csv"  # of a run that was asked for it
STATEMENT, RESULT, LEDGER = "statement.txt", "result.json", "ledger"
ENCODING = "encoding.json"  # of a run on a table: how its rows become numbers
EXPORTED = "model.json"  # of an export: what it is
ACCOUNT = "account.json"  # which ledgers the run shares with others, and its id there
SCHEMA, SCHEMA_LEDGER = "schema.json", "schema.ledger"  # of a table: what was found privately


class FileError(RuntimeError):
    """A file of a run's folder could not be written or read; says what to do."""


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, where there is none."""
    with in_words("make the folder", path):
        path.mkdir(parents=True, exist_ok=True)


def write_bytes(path: Path, data: bytes, *, permissions: int = 0o666) -> None:
    """Writes a file so that it is whole or not there."""
    with in_words("write", path):
        durable.write(path, data, permissions=permissions)


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is whole or not there."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes JSON so that the file is whole or not there."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Plain values as the text of a JSON file; refuses what JSON has no number for."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        FileError: If there is none, naming the file.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # a number too long, or nested too deeply
        raise FileError(f"{path} is damaged: it is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise FileError(f"{path} is damaged: it holds a {type(value).__name__}, not an object.")
    return value


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends a row to a file of JSON lines."""
    line = json.dumps(row, allow_nan=False) + "\n"  # before anything of it is written
    with in_words("append to", path), path.open("a", encoding="utf-8") as stream:
        stream.write(line)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines that belong to a step; none if there is no such file."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
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


@contextlib.contextmanager
def in_words(do: str, path: Path) -> Iterator[None]:
    """Says what the system refused, where, and what to do."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"Cannot {do} {path}: {error.strerror}. What was there before is as it was, and what "
            f"was spent is in the ledger. {durable.advice(error)}, then give the same command "
            "again."
        ) from error
