"""From records that were read one by one to a batch: rows of one shape, padded where declared.

Guarantee: a row of the batch is a function of its own record and of ``pad_to``. Nothing is padded
to the longest record, and no type is widened because another record needs it: records that do not
fit together are refused, in words that tell nothing about any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Length = int | tuple[int, float]
PadTo = Length | Mapping[str | int, Length]
"""A length for all fields, or one for each; with a value to pad with, where that is not 0."""


class UnequalRecords(ValueError):
    """Records do not fit together into one batch."""


class Padding:
    """The declared length of fields, checked.

    Args:
        pad_to: As ``make_private`` takes it; None pads nothing.

    Raises:
        ValueError: If a length or a value is none.
    """

    def __init__(self, pad_to: PadTo | None) -> None:
        self._all: tuple[int, float] | None = None
        self._fields: dict[str, tuple[int, float]] = {}
        if isinstance(pad_to, Mapping):
            self._fields = {str(name): _length(one, pad_to) for name, one in pad_to.items()}
        elif pad_to is not None:
            self._all = _length(pad_to, pad_to)

    def of(self, field: str) -> tuple[int, float] | None:
        """What a field is padded to; a name is also that of all that is inside it."""
        if not self._fields:
            return self._all
        parts = field.split(".")
        names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self._fields[name] for name in names if name in self._fields), None)

    def require_fields(self, row: Any) -> None:
        """Refuses names that are those of no field of a record.

        Raises:
            ValueError: Naming the fields that there are.
        """
        if not self._fields:
            return
        fields = list(_fields(row, ""))
        for name in self._fields:
            if not any(field == name or field.startswith(f"{name}.") for field in fields):
                raise ValueError(
                    f"pad_to names the field {name!r}; the records have the fields "
                    f"{', '.join(map(repr, fields))}. Name one of these, or give one length for "
                    "all."
                )


def stack(rows: Sequence[Any], padding: Padding) -> Any:
    """Batches of one record each, ``[1, ...]`` in any nesting, as one batch ``[R, ...]``.

    Args:
        rows: At least one; what is not a tensor must be equal in all.
        padding: To which length which fields are padded.

    Raises:
        UnequalRecords: Naming the field in which records differ, and what to write.
    """
    padding.require_fields(rows[0])
    return _stack(rows, "", padding)


def _stack(rows: Sequence[Any], field: str, padding: Padding) -> Any:
    first = rows[0]
    if not isinstance(first, dict | list | tuple):
        return _joined(list(rows), field, padding.of(field))
    if not all(type(row) is type(first) and len(row) == len(first) for row in rows):
        raise UnequalRecords(_FORMS)
    if isinstance(first, dict):
        if not all(row.keys() == first.keys() for row in rows):
            raise UnequalRecords(_FORMS)
        return {
            key: _stack([row[key] for row in rows], _within(field, key), padding) for key in first
        }
    parts = [
        _stack(column, _within(field, key), padding)
        for key, column in zip(_keys(first), zip(*rows, strict=True), strict=True)
    ]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)


_FORMS = (
    "Records come in different forms: not all have the same fields in the same nesting. Return the "
    "same tuple, list or dict for every record, from the data set or from the collate function."
)


def _keys(row: Any) -> Sequence[Any]:
    """The names or places of what a record's tuple or list has."""
    return getattr(row, "_fields", range(len(row)))


def _within(field: str, key: Any) -> str:
    """A field by the names and places that lead to it, such as ``"inputs.0"``."""
    return f"{field}.{key}" if field else str(key)


def _fields(row: Any, field: str) -> Iterator[str]:
    if isinstance(row, dict):
        for key, part in row.items():
            yield from _fields(part, _within(field, key))
    elif isinstance(row, list | tuple):
        for key, part in zip(_keys(row), row, strict=True):
            yield from _fields(part, _within(field, key))
    else:
        yield field


def _joined(column: list[Any], field: str, length: tuple[int, float] | None) -> Any:
    first = column[0]
    if not isinstance(first, Tensor):
        if all(_equal(first, other) for other in column):
            return first
        raise UnequalRecords(
            f"{_the(field)} is of type {type(first).__name__} and differs between records. Only "
            "tensors can differ: make one of it (torch.tensor(...)) in the data set or in the "
            "collate function, or leave it out."
        )
    if not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (1,) for leaf in column):
        raise UnequalRecords(
            f"{_the(field)} is not a tensor [1, ...] for every record. The collate function is "
            "given a list of one record at a time and must return a batch of one: tensors whose "
            "first dimension is 1, as torch.stack([...]) makes them. Plumbline puts them together."
        )
    if length is not None:
        column = [_padded(leaf, field, *length) for leaf in column]
    if len({(leaf.dtype, leaf.device) for leaf in column}) > 1:
        raise UnequalRecords(
            f"{_the(field)} is not of one type (or not on one device) in all records: joined, one "
            "record would change the type of the others. Convert it in the data set, as with "
            ".float() or .long()."
        )
    if len({leaf.shape for leaf in column}) > 1:
        raise UnequalRecords(
            f"{_the(field)} differs in shape between records. Records are not padded to the "
            "longest of a batch, which would tell each how long the others are: declare a length "
            f"for all, as in pad_to={_example(field)} (or (128, value) to pad with another value "
            "than 0), or return tensors of one shape from the data set."
        )
    return torch.cat(column)


def _padded(leaf: Tensor, field: str, length: int, value: float) -> Tensor:
    if leaf.dim() < 2 or leaf.shape[1] == length:
        return leaf
    if leaf.shape[1] > length:
        raise UnequalRecords(
            f"{_the(field)} of a record is longer than the {length} that pad_to declares. Give a "
            "length that holds every record, or cut records to it in the data set or the collate "
            "function."
        )
    padded = leaf.new_full((1, length, *leaf.shape[2:]), value)
    padded[:, : leaf.shape[1]] = leaf
    return padded


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # comparing can do anything: arrays, for one, have no single answer
        return False


def _example(field: str) -> str:
    return f"{{{field!r}: 128}}" if field else "128"


def _the(field: str) -> str:
    return f"The field '{field}'" if field else "What a record is made into"


def _length(given: Any, whole: Any) -> tuple[int, float]:
    length, value = given if isinstance(given, tuple) and len(given) == 2 else (given, 0)
    whole_number = type(length) is int and length >= 1
    if not whole_number or isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"pad_to is {whole!r}; give a length of at least 1 for all fields, or a length for "
            "each as in {'input_ids': 128, 'labels': (128, -100)}, where the second number is what "
            "to pad with (0 unless told)."
        )
    return length, value
