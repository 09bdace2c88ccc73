"""The tables that a user has trained on, and whether a file holds the rows of one of them.

A table is known by a sketch of its rows (``data.table_sketch``) and by digests of the files that it
was seen in, all keyed with the user's key. The same rows are recognised in another file, in another
order, beside further columns, and where a table has grown or is a part of another. Beside fewer
columns they are, if a file with these is still there.

PRIVATE: ``table.PRIVATE`` holds the sketch. It is kept beside the table's ledger, in the user's
state folder, and is in no run's folder.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from plumbline import durable
from plumbline.data.csv_files import CsvForm
from plumbline.data.digests import file_digest, object_digest
from plumbline.data.files import DataError
from plumbline.data.table_files import Table, TableSource, is_frame, open_table
from plumbline.data.table_sketch import Sketch, keyed, named_columns, overlap, sketches
from plumbline.experiments.files import FileError

RECORD = "table.PRIVATE"
_MARK = (
    "PRIVATE: keyed digests of the rows of a table, by which Plumbline recognises it. No guarantee "
    "covers this file; keep it as you keep the data, and never publish it.\n"
)
_NEARLY_ALL = 0.95
_COLUMNS = 0.5  # the share of the columns that two tables must have in common to be compared


class _FilePlace(NamedTuple):
    """Where a file was, and the form of a csv file."""

    path: str = ""
    form: dict[str, str] = {}  # noqa: RUF012


@dataclass
class KnownTable:
    """A table that was seen.

    Attributes:
        folder: Where its ledger and this record are kept.
        title: What it was called when it was first seen.
        sketch: Of all its rows that were seen, on the columns that it first had.
        wholes: Digests of all rows together, of each version.
        files: Digests of the files that it was seen in, each with what is said about it.
        places: Where these files were.
    """

    folder: Path
    title: str
    sketch: Sketch
    wholes: list[str]
    files: dict[str, str]
    places: list[_FilePlace]


class KnownTables:
    """All tables that were seen, by the user's key.

    Args:
        folder: Where each has a folder of its own.
        key: Of the digests.

    Attributes:
        foreign: How many there are of another key, which are not recognised.

    Raises:
        FileError: If a record is damaged.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self.foreign = 0
        self._folder, self._key = folder, key
        self._fingerprint = keyed(key, "row key, 2")  # the second form of sketches
        self._known: list[KnownTable] = []
        for path in sorted(folder.glob(f"*/{RECORD}")):
            self._read(path)

    def digest_of(self, source: TableSource) -> str:
        """What a file or DataFrame is known by."""
        return keyed(self._key, object_digest(source) if is_frame(source) else file_digest(source))

    def seen_in(self, content: str) -> list[KnownTable]:
        """The tables that were seen in this very file, as it is."""
        return [one for one in self._known if content in one.files]

    def recognise(self, source: TableSource, form: CsvForm, content: str) -> list[KnownTable]:
        """The known tables whose rows a file holds, or the table as a new one; writes that down.

        Raises:
            DataError: If the table cannot be read.
        """
        table = open_table(source, form)
        title = table.title if table.path is None else table.path.name
        place = (
            _FilePlace()
            if table.path is None
            else _FilePlace(str(table.path.resolve()), form.options)
        )
        own = tuple(sorted(named_columns(table)))
        sets = [own, *({one.sketch.columns for one in self._known} - {own})]
        sets = [names for names in sets if set(names) <= set(own)]
        made = dict(zip(sets, sketches(table, self._key, sets), strict=True))
        found = {}
        for one in self._known:
            pair = self._comparable(one, table, made)
            if pair is not None and (words := _recognised(one, *pair, title, place.path)):
                found[one.folder] = one, words
        if not found:
            return [self._add(title, made[own], content, place)]
        for one, words in found.values():
            new = made.get(one.sketch.columns)
            if new is not None:
                one.wholes = [*dict.fromkeys([*one.wholes, new.whole])]
            if new is not None and len(found) == 1:  # else its rows are also those of others
                one.sketch = one.sketch.with_rows(new)
            self._keep(one, content, f"{words}: its runs are charged to the same ledger.", place)
        return [one for one, _ in found.values()]

    def _comparable(
        self, known: KnownTable, table: Table, made: Mapping[tuple[str, ...], Sketch]
    ) -> tuple[Sketch, Sketch] | None:
        """Sketches of both on the same columns; None where there are too few, or no file of it."""
        if (new := made.get(known.sketch.columns)) is not None:
            return known.sketch, new
        own = named_columns(table).keys()
        common = own & set(known.sketch.columns)
        if len(common) < max(2, _COLUMNS * min(len(own), len(known.sketch.columns))):
            return None
        for place in reversed(known.places):
            with contextlib.suppress(OSError, DataError):  # it is gone, or is another file now
                if self.digest_of(place.path) in known.files:
                    there = open_table(place.path, CsvForm(**place.form))
                    if common <= named_columns(there).keys():
                        (theirs,) = sketches(there, self._key, [common])
                        (ours,) = sketches(table, self._key, [common])
                        return theirs, ours
        return None

    def _add(self, title: str, sketch: Sketch, content: str, place: _FilePlace) -> KnownTable:
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "table"
        folder = self._folder / f"{name}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
        new = KnownTable(folder, title, sketch, [sketch.whole], {}, [])
        self._keep(new, content, "", place)
        self._known.append(new)
        return new

    def _keep(self, one: KnownTable, content: str, words: str, place: _FilePlace) -> None:
        one.files[content] = words
        if place.path and place not in one.places:
            one.places.append(place)
        fields = {
            "key": self._fingerprint,
            "title": one.title,
            "sketch": one.sketch.to_json(),
            "wholes": one.wholes,
            "files": one.files,
            "places": one.places,
        }
        data = (_MARK + json.dumps(fields) + "\n").encode()
        durable.write(one.folder / RECORD, data, permissions=0o600)

    def _read(self, path: Path) -> None:
        try:
            fields = json.loads(path.read_text(encoding="utf-8").removeprefix(_MARK))
            if fields["key"] != self._fingerprint:
                self.foreign += 1
                return
            sketch = Sketch.of_json(fields["sketch"])
            places = [_FilePlace(*place) for place in fields["places"]]
            files = {str(name): str(words) for name, words in fields["files"].items()}
            wholes = list(map(str, fields["wholes"]))
            known = KnownTable(path.parent, str(fields["title"]), sketch, wholes, files, places)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileError(
                f"{path} is damaged ({type(error).__name__}): by it a table is recognised. Restore "
                "it from a copy; or delete it, and name the ledger beside it with --ledger for "
                "runs on that table."
            ) from error
        self._known.append(known)


def _recognised(
    known: KnownTable, theirs: Sketch, ours: Sketch, title: str, path: str
) -> str | None:
    """In words, why a file holds the rows of a known table; None if it does not."""
    name = known.title if known.title != title else f"the {title} that was used before"
    shared = overlap(theirs, ours)
    if ours.whole in (theirs.whole, *known.wholes):
        return f"The rows of {title} are those of {name}"
    if shared.same:
        return _words(title, name, shared.common / shared.known, shared.common / shared.new)
    # What cannot be told is taken for the same: to count too much is safe.
    alike = ours.columns == known.sketch.columns and path in {one.path for one in known.places}
    if alike and not shared.telling:
        return f"The rows of {title} are too few, or too common, to tell it from {name}"
    return None


def _words(title: str, name: str, of_known: float, of_new: float) -> str:
    if min(of_known, of_new) > _NEARLY_ALL:
        return f"The rows of {title} are those of {name}"
    if of_known > _NEARLY_ALL:
        return (
            f"{title} has the rows of {name} and others; about {of_new:.0%} of its rows are known"
        )
    if of_new > _NEARLY_ALL:
        return f"The rows of {title} are a part of those of {name}, about {of_known:.0%}"
    return f"About {of_new:.0%} of the rows of {title} are rows of {name}"
