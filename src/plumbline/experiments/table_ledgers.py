"""One ledger for each table, in the user's state folder, wherever the table's file lies.

Which table it is, its rows tell (``known_tables``). The same rows in another file are charged to
the same ledger, and so is a table that has grown. A table with the rows of several is charged to
the ledgers of all of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from plumbline import durable
from plumbline.data.csv_files import CsvForm
from plumbline.data.table_files import TableSource, existing, is_frame
from plumbline.experiments.files import LEDGER, FileError
from plumbline.experiments.known_tables import KnownTables
from plumbline.experiments.objects import OBJECTS
from plumbline.experiments.recipe import DataPart
from plumbline.experiments.user_folders import row_key, state_folder

_FORM = ("encoding", "separator", "decimal")


class TableLedgers(NamedTuple):
    """The ledgers that runs on a table are charged to, and what is to be said about that."""

    paths: tuple[Path, ...] = ()
    words: tuple[str, ...] = ()


def table_source(part: DataPart) -> TableSource | None:
    """The file or DataFrame of a table; None for other data."""
    if part.name == "table":
        path: TableSource = part.options["path"]
        return path
    frame = OBJECTS.get(part.name)
    return frame if is_frame(frame) else None


def ledgers_of(part: DataPart) -> TableLedgers:
    """The ledgers of the data's table, a new one if it is not recognised; none for other data.

    Raises:
        FileError: If the state folder or the key cannot be used; says what to do.
        DataError: If the table cannot be read.
    """
    source = table_source(part)
    if source is None:
        return TableLedgers()
    if not is_frame(source):
        existing(source)
    form = CsvForm(**{name: part.options[name] for name in _FORM if name in part.options})
    with _in_words(), _alone() as folder:
        tables = KnownTables(folder, row_key())
        content = tables.digest_of(source)
        known = tables.seen_in(content)
        words: list[str] = []
        if not known:
            known = tables.recognise(source, form, content)
            if tables.foreign and not known[0].files[content]:
                words.append(
                    f"{tables.foreign} tables that were used before are known by another key than "
                    "the one in use now, and are not recognised. If this is one of them, name its "
                    "ledger with --ledger."
                )
        words += [one.files[content] for one in known if one.files[content]]
        return TableLedgers(tuple(one.folder / LEDGER for one in known), tuple(words))


@contextlib.contextmanager
def _alone() -> Iterator[Path]:
    """The folder of all tables, for one process at a time: two must not add the same table."""
    folder = state_folder() / "tables"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Says what the system refused, and how to do without the state folder."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"Cannot use {error.filename or state_folder()}: {error.strerror}. The ledger of each "
            "table is kept in your state folder, and runs on it are charged there; nothing was "
            f"charged. {durable.advice(error)} (PLUMBLINE_STATE and PLUMBLINE_CONFIG name other "
            "folders), or name a ledger with --ledger (in Python, ledger=)."
        ) from error
