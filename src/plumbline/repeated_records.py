"""Data sets that name a record several times, as oversampling does.

What is proven is how far one item of a data set can move an answer. Of a record that is there three
times it would be a third of the truth. Torch's ``Subset`` and ``ConcatDataset``, and Hugging Face's
data sets (``select``, ``repeat``, ``concatenate_datasets``), say which records they are made of,
without looking at any; what other data sets do is trusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

_Numbers = np.ndarray[Any, Any]


def refuse_repeated(dataset: Any) -> None:
    """Refuses a data set that says that it has a record several times.

    Raises:
        ValueError: With what to give instead.
    """
    if not isinstance(dataset, Subset | ConcatDataset) and not _is_table(dataset):
        return
    found: dict[Hashable, list[_Numbers]] = defaultdict(list)
    whole: Any = dataset
    for place, numbers in _inner(whole, np.arange(len(whole))):
        found[place].append(numbers)
    numbered = [np.concatenate(parts) for parts in found.values()]
    if any(len(np.unique(numbers)) < len(numbers) for numbers in numbered):
        raise ValueError(
            f"The data set, a {type(dataset).__name__}, has a record several times, which could "
            "move the weights by as many times its bound. Name each record once; to count some for "
            "less than others, give make_private record_weights. Or give it user_ids, one for all "
            "copies of a record."
        )


def _inner(dataset: Any, numbers: _Numbers) -> Iterator[tuple[Hashable, _Numbers]]:
    """Where the numbers of a data set lead to in the end, and the numbers there."""
    if isinstance(dataset, Subset):
        inner: Any = dataset.dataset
        named = np.asarray(dataset.indices)[numbers]
        if named.dtype.kind == "i" and (named < 0).any():  # counted from the end
            named = named + len(inner) * (named < 0)
        yield from _inner(inner, named)
    elif isinstance(dataset, ConcatDataset):
        for inner, some in _split(numbers, np.asarray(dataset.cumulative_sizes)):
            yield from _inner(dataset.datasets[inner], some)
    elif _is_table(dataset):
        if dataset._indices is not None:
            numbers = dataset._indices.column(0).to_numpy()[numbers]
        chunks = dataset.data.column(0).chunks if dataset.data.num_columns else []
        for inner, some in _split(numbers, np.cumsum([len(chunk) for chunk in chunks])):
            memory = next((one for one in chunks[inner].buffers() if one is not None), None)
            if memory is not None:  # the same for all that is cut from one table
                yield ("memory", memory.address), chunks[inner].offset + some
    else:
        yield id(dataset), numbers


def _split(numbers: _Numbers, ends: _Numbers) -> Iterator[tuple[int, _Numbers]]:
    """Numbers of a whole by its parts, which have these ends, with the numbers in each part."""
    parts = np.searchsorted(ends, numbers, side="right")
    for part in range(len(ends)):
        yield part, numbers[parts == part] - (ends[part - 1] if part else 0)


def _is_table(dataset: Any) -> bool:
    """Whether a data set is one of Hugging Face's, without importing their library."""
    kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(dataset).__mro__]
    return "datasets.arrow_dataset.Dataset" in kinds
