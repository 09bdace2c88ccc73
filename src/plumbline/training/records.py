"""The user's data set, by record: any map-style data set, tensors, dicts, Hugging Face data sets.

``Records.fetch`` gives the chunk of some record numbers in the form that the loss will see. Nothing
is copied or shuffled here, and nothing but the number of records is looked at beforehand.

Guarantee: a row of the chunk depends on its own record, its number and the key alone. Rows of
tensors are selected. Everything else is read by the user's code, which is shown one record at a
time, with random numbers of that record's own (``record_random``); the rows are put together here
(``stacking``). So no collate function and no data set can sort, pad or mix the records of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from plumbline.checks import is_row_by_row
from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.held_generators import held_by, state_of
from plumbline.record_errors import read_quietly
from plumbline.record_random import one_by_one
from plumbline.training.stacking import Padding, PadTo, UnequalRecords, stack

Collate = Callable[[list[Any]], Any]
"""Makes a batch of one record, ``[1, ...]``, of a list that has only that one."""


class Records(ABC):
    """A data set whose records can be fetched by number.

    Attributes:
        data: The data set.
        selected: Whether records are rows of tensors, which no code of the user's reads: there is
            nothing that a key could change.
    """

    data: Any
    selected = False

    @abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @abstractmethod
    def fetch(self, index: Tensor, key: str = "") -> Any:
        """The records ``index`` (``[R]``, at least one) as a batch.

        Args:
            index: The records' numbers.
            key: What the records' own random numbers depend on: the run and the step.
        """


class TensorRecords(Records):
    """Tensors with one row per record: a tensor, a tuple, or a mapping."""

    selected = True

    def __init__(self, data: Any, length: int) -> None:
        self.data = data
        self._length = length

    def __len__(self) -> int:
        return self._length

    def fetch(self, index: Tensor, key: str = "") -> Any:
        return mapped(lambda tensor: tensor.index_select(0, index.to(tensor.device)), self.data)


class RowByRow(Records):
    """A data set that says of itself that it makes each row from that record alone.

    ``plumbline.data``'s do where they hold tensors, and are asked for all records at once.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def fetch(self, index: Tensor, key: str = "") -> Any:
        return self.data.fetch(index)


class OneByOne(Records):
    """A data set that is asked for one record at a time."""

    def __init__(self, data: Any, pad_to: PadTo | None, collate: Collate | None = None) -> None:
        self.data = data
        self._padding = Padding(pad_to)
        self._generators = held_by(data, collate)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_generators"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # In another process, global ones are those of that process.
        self._generators = held_by(self.data, state.get("_collate"))

    def __len__(self) -> int:
        return len(self.data)

    @abstractmethod
    def read(self, number: int) -> Any:
        """The record with this number, as a batch of one."""

    def fetch(self, index: Tensor, key: str = "") -> Any:
        before = [state_of(one) for one in self._generators]
        rows = one_by_one(self._read, index.tolist(), key)
        if before != [state_of(one) for one in self._generators]:
            raise RecordsMixError(_OWN_GENERATOR)
        return stack(rows, self._padding)

    def _read(self, number: int) -> Any:
        batch = self.read(number)
        # As a dict, even if it was transformers' BatchEncoding, so that its tensors are seen.
        return dict(batch) if isinstance(batch, Mapping) else batch


_OWN_GENERATOR = (
    "A random generator that the data set (or the collate function) holds was drawn from as "
    "records were read: what a record looks like would depend on the records read before it. Use "
    "the global generators of torch, NumPy (np.random.rand) or Python's random instead, which are "
    "set for each record and step; or make a generator anew for each record, from these: "
    "np.random.default_rng(np.random.randint(2**31)) in __getitem__."
)


class MappedRecords(OneByOne):
    """A map-style data set, with the user's collate function or torch's."""

    def __init__(self, data: Any, collate: Collate | None, pad_to: PadTo | None) -> None:
        super().__init__(data, pad_to, collate)
        self._collate = _default if collate is None else collate
        self._many = getattr(data, "__getitems__", None)

    def read(self, number: int) -> Any:
        rows = read_quietly(self._rows, number)
        if len(rows) != 1:
            raise UnequalRecords(
                f"{type(self.data).__name__}.__getitems__ was asked for one record and gave "
                f"{len(rows)}. It must give one for each number."
            )
        if self._collate is _default:
            return _default(rows)
        return read_quietly(lambda _: self._collate(rows), number)

    def _rows(self, number: int) -> list[Any]:
        return [self.data[number]] if self._many is None else list(self._many([number]))


def _default(rows: list[Any]) -> Any:
    """What torch's default_collate makes of one record, several times faster for usual ones."""
    (row,) = rows
    kind = type(row)
    if kind is Tensor:
        return row[None]
    if kind is tuple or kind is list:
        return [_default([part]) for part in row]
    if kind is dict:
        return {name: _default([part]) for name, part in row.items()}
    return torch.tensor([row]) if kind is int else default_collate(rows)


class FetchedRecords(OneByOne):
    """A data set of the user's that has ``fetch(index)``, asked for one record at a time."""

    def read(self, number: int) -> Any:
        return read_quietly(lambda k: self.data.fetch(torch.tensor([k])), number)


class TableRecords(OneByOne):
    """A Hugging Face data set in torch format: a list of numbers gives a dict of tensors.

    One query for all is many times faster than one for each record, and its rows are taken if they
    are those of single queries: each column of its declared type, or a list with a tensor for each
    record. (A missing value turns a whole column of a query into floats.) Otherwise records are
    read one by one.
    """

    def __init__(self, data: Any, pad_to: PadTo | None) -> None:
        super().__init__(data, pad_to)
        self._pads = pad_to is not None
        self._kinds = {name: _kind(feature) for name, feature in data.features.items()}

    def read(self, number: int) -> Any:
        return self.data[[number]]

    def fetch(self, index: Tensor, key: str = "") -> Any:
        columns = self.data[index.tolist()]
        if not all(_is_own(column, self._kinds.get(name)) for name, column in columns.items()):
            return super().fetch(index, key)
        if not self._pads and all(isinstance(column, Tensor) for column in columns.values()):
            return columns
        rows = [
            {name: column[row][None] for name, column in columns.items()}
            for row in range(len(index))
        ]
        return stack(rows, self._padding)


def _kind(feature: Any) -> str | None:
    while hasattr(feature, "feature"):
        feature = feature.feature
    return getattr(feature, "dtype", None)


def _is_own(column: Any, kind: str | None) -> bool:
    """Whether each row of a column is what a query for that record alone would give."""
    if isinstance(column, list):
        return all(isinstance(row, Tensor) for row in column)
    if not isinstance(column, Tensor) or kind is None:
        return False
    if column.is_floating_point():
        return kind.startswith("float")
    return kind == "bool" if column.dtype == torch.bool else kind.startswith(("int", "uint"))


def records_of(
    dataset: Any, collate: Collate | None = None, pad_to: PadTo | None = None
) -> Records:
    """The data set's records, whatever its kind.

    Args:
        dataset: A tensor, a sequence or mapping of tensors with one row per record, a map-style
            torch data set, a data set that has ``fetch(index)``, or a Hugging Face data set in
            torch format. One with ``fetch`` is asked for one record at a time, unless its
            ``row_by_row`` is True: it then promises to make each row from that record alone.
        collate: How a list of one record becomes a batch of one; records are then read one by one.
        pad_to: The length that fields are padded to, if records differ in length.
    """
    found = _records_of(dataset, collate, pad_to)
    if pad_to is not None and not isinstance(found, OneByOne):
        raise ValueError(
            "pad_to is for records that are read one by one and differ in length, but those of "
            "this data set are rows of tensors, all of one length. Leave pad_to out."
        )
    return found


def _records_of(dataset: Any, collate: Collate | None, pad_to: PadTo | None) -> Records:
    if isinstance(dataset, TensorDataset) and collate is None:
        dataset = dataset.tensors if len(dataset.tensors) > 1 else dataset.tensors[0]
    if isinstance(dataset, Tensor) and collate is None:
        return TensorRecords(dataset, _rows({"data": dataset}))
    if isinstance(dataset, Mapping):
        if collate is not None:
            raise ValueError(
                "A collate function is for records that are read one by one, but the data set is a "
                "mapping of columns. Leave the function out, or give a list of records."
            )
        return TensorRecords(dict(dataset), _rows(dataset))
    columns = isinstance(dataset, tuple | list) and dataset and hasattr(dataset[0], "shape")
    if columns and isinstance(dataset, list) and pad_to is not None:
        columns = False  # records of different lengths
    if columns and collate is None:
        named = {str(place): tensor for place, tensor in enumerate(dataset)}
        return TensorRecords(tuple(dataset), _rows(named))
    if isinstance(dataset, tuple) and dataset and all(type(part) is list for part in dataset):
        raise TypeError(
            f"The data set is a tuple of {len(dataset)} lists. Convert columns with "
            "torch.as_tensor(...); for records that are read one by one, give a list of records."
        )
    if isinstance(dataset, IterableDataset) or (
        isinstance(dataset, Dataset) and not hasattr(dataset, "__len__")
    ):
        raise TypeError(
            f"{type(dataset).__name__} is an iterable data set, or has no length. Poisson sampling "
            "needs a data set whose records can be asked for by number (map style): read the "
            "records into one, such as a list."
        )
    if hasattr(dataset, "with_format") and hasattr(dataset, "features") and collate is None:
        if getattr(dataset, "format", {}).get("type") != "torch":
            raise TypeError(
                "The Hugging Face data set is not in torch format, so its records would not be "
                'tensors. Give dataset.with_format("torch"), or a collate function.'
            )
        return TableRecords(dataset, pad_to)
    if callable(getattr(dataset, "fetch", None)) and collate is None:
        if is_row_by_row(dataset):
            return RowByRow(dataset)
        return FetchedRecords(dataset, pad_to)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return MappedRecords(dataset, collate, pad_to)
    raise TypeError(
        f"A data set of type {type(dataset).__name__} cannot be sampled record by record. Give "
        "tensors, a map-style torch data set, or a Hugging Face data set in torch format; a data "
        "loader is not needed, Plumbline draws the batches itself."
    )


def _rows(tensors: Mapping[str, Any]) -> int:
    strange = {name: type(value).__name__ for name, value in tensors.items()}
    strange = {name: kind for name, kind in strange.items() if not _is_rows(tensors[name])}
    if strange or not tensors:
        raise TypeError(
            "The data set's columns must be tensors with one row per record, but "
            + (f"these are not: {strange}" if strange else "there are none")
            + ". Convert arrays with torch.as_tensor(...)."
        )
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(
            f"The tensors of the data set have different lengths: {lengths}. Each must have one "
            "row per record."
        )
    return next(iter(lengths.values()))


def _is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def to_device(data: Any, device: torch.device) -> Any:
    """The tensors of a chunk on the model's device."""
    aside = device.type != "cpu"  # pinned memory is copied beside the computation
    return mapped(lambda x: x.to(device, non_blocking=aside) if isinstance(x, Tensor) else x, data)


def mapped(function: Callable[[Any], Any], data: Any) -> Any:
    """``tree_map``, in less time for a tuple of tensors, the usual batch."""
    if type(data) is tuple and all(isinstance(one, Tensor) for one in data):
        return tuple([function(one) for one in data])
    return tree_map(function, data)
