"""Errors about a record that say which record it is, and nothing of what is in it.

Messages go to terminals, logs and trackers, which are kept less carefully than the data. Libraries
quote what they cannot use ("Target 7 is out of bounds", "could not convert string to float:
'Oslo'"), so where records are read or looked up, such an error is replaced by one that does not. It
is not chained either: a traceback shows every link.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")

_OUT_OF_RANGE = re.compile(r"\b(index|target)\b.*\bout of (bounds|range)\b", re.IGNORECASE)
_STANDARD = Path(traceback.__file__).parent
_TORCH, _OURS = Path(torch.__file__).parent, Path(__file__).parent


class RecordError(ValueError):
    """A record cannot be used; says which, and not what is in it."""


def read_quietly(read: Callable[[int], T], number: int) -> T:
    """What the user's own code makes of record ``number``.

    Raises:
        RecordError: If that fails: with the line, and without the message, which may quote the
            record. Plumbline's own errors pass.
    """
    try:
        return read(number)
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "plumbline":
            raise
        raise RecordError(
            f"Record {number} of the data set cannot be read: {own_line(error) or 'reading it'} "
            f"fails with {type(error).__name__}. Its message is left out, for it may quote the "
            f"record; dataset[{number}] (or the collate function on it) shows it."
        ) from None


def looked_up(
    compute: Callable[[], T], records: Sequence[int] | torch.Tensor, alone: Callable[[int], object]
) -> T:
    """The result of ``compute``, which looks records' classes (or other numbers) up.

    Args:
        compute: What may meet a number that is out of range.
        records: The numbers of its records in the data set.
        alone: The same for the record at one place among them, to find which it is.

    Raises:
        RecordError: If a number is out of range.
    """
    try:
        return compute()
    except (IndexError, RuntimeError) as error:
        if not is_out_of_range(error):
            raise
        line = own_line(error)
        place = next((at for at in range(len(records)) if _fails(alone, at)), None)
        which = "A record" if place is None else f"Record {int(records[place])}"
        raise RecordError(
            f"{which} of the data set has a class, or another number that is looked up, which is "
            f"out of range{f' in {line}' if line else ''}. Classes are numbered from 0, and there "
            "are as many as the model has outputs; the rows of an embedding likewise."
        ) from None


def is_out_of_range(error: Exception) -> bool:
    """Whether it is an error of torch's that quotes a number which it could not look up."""
    return _OUT_OF_RANGE.search(str(error)) is not None


def own_line(error: BaseException) -> str | None:
    """The last line of the user's own code that an error came through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and file.parent != _STANDARD and not {_TORCH, _OURS} & {*file.parents}:
            return f"the line {file.name}:{frame.lineno} ({(frame.line or '').strip()})"
    return None


def _fails(alone: Callable[[int], object], place: int) -> bool:
    try:
        with torch.no_grad():
            alone(place)
    except Exception:
        return True
    return False
