"""The user's data set, by record: any map-style data set, tensors, dicts, Hugging Face data sets.

``Records.fetch`` gives the chunk of some record numbers in the form that the loss will see. Nothing
is copied or shuffled here, and nothing but the number of records is looked at beforehand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

Collate = Callable[[list[Any]], Any]


class Records(ABC):
    """A data set whose records can be fetched by number."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @abstractmethod
    def fetch(self, index: Tensor) -> Any:
        """The records ``index`` (``[R]``, at least one), collated."""


class TensorRecords(Records):
    """Tensors with one row per record: a tensor, a tuple, or a mapping."""

    def __init__(self, data: Any, length: int) -> None:
        self._data = data
        self._length = length

    def __len__(self) -> int:
        return self._length

    def fetch(self, index: Tensor) -> Any:
        return tree_map(lambda tensor: tensor.index_select(0, index.to(tensor.device)), self._data)


class MappedRecords(Records):
    """A map-style data set, read record by record and collated."""

    def __init__(self, data: Any, collate: Collate | None) -> None:
        self._data = data
        self._collate = collate or default_collate

    def __len__(self) -> int:
        return len(self._data)

    def fetch(self, index: Tensor) -> Any:
        numbers = index.tolist()
        many = getattr(self._data, "__getitems__", None)
        rows = many(numbers) if many is not None else [self._data[number] for number in numbers]
        batch = self._collate(rows)
        # As a dict, even if it was transformers' BatchEncoding: the isolation check looks inside.
        return dict(batch) if isinstance(batch, Mapping) else batch


class TableRecords(Records):
    """A Hugging Face data set in torch format: a list of numbers gives a dict of tensors."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def fetch(self, index: Tensor) -> Any:
        return self._data[index.tolist()]


class FetchedRecords(Records):
    """A data set that fetches several records at once by itself, as ``plumbline.data``'s do."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def fetch(self, index: Tensor) -> Any:
        return self._data.fetch(index)


def records_of(dataset: Any, collate: Collate | None = None) -> Records:
    """The data set's records, whatever its kind.

    Args:
        dataset: A tensor, a sequence or mapping of tensors with one row per record, a map-style
            torch data set, a data set that has ``fetch(index)`` for several records at once, or a
            Hugging Face data set in torch format.
        collate: How a list of records becomes a batch; with it, records are read one by one.
    """
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
        return TableRecords(dataset)
    if callable(getattr(dataset, "fetch", None)) and collate is None:
        return FetchedRecords(dataset)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return MappedRecords(dataset, collate)
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
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, data)
