"""Data sets that name a record several times, as oversampling does.

What is proven is how far one item of a data set can move an answer. Of a record that is there three
times it would be a third of the truth. Torch's ``Subset`` and ``ConcatDataset`` say which records
they are made of, without looking at any; what other data sets do is trusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

_Numbers = np.ndarray[Any, Any]


def refuse_repeated(dataset: Any) -> None:
    """Refuses a data set that says that it has a record several times.

    Raises:
        ValueError: With what to give instead.
    """
    if not isinstance(dataset, Subset | ConcatDataset):
        return
    found: dict[int, list[_Numbers]] = defaultdict(list)
    whole: Any = dataset
    for inner, numbers in _inner(whole, np.arange(len(whole))):
        found[id(inner)].append(numbers)
    numbered = [np.concatenate(parts) for parts in found.values()]
    if any(len(np.unique(numbers)) < len(numbers) for numbers in numbered):
        raise ValueError(
            f"The data set, a {type(dataset).__name__}, has a record several times, which could "
            "move the weights by as many times its bound. Name each record once; to count some for "
            "less than others, give make_private record_weights. Or give it user_ids, one for all "
            "copies of a record."
        )


def _inner(dataset: Any, numbers: _Numbers) -> Iterator[tuple[Any, _Numbers]]:
    """The innermost data sets that numbers of a data set lead to, with the numbers there."""
    if isinstance(dataset, Subset):
        inner: Any = dataset.dataset
        named = np.asarray(dataset.indices)[numbers]
        if named.dtype.kind == "i" and (named < 0).any():  # counted from the end
            named = named + len(inner) * (named < 0)
        yield from _inner(inner, named)
    elif isinstance(dataset, ConcatDataset):
        ends = np.asarray(dataset.cumulative_sizes)
        places = np.searchsorted(ends, numbers, side="right")
        for place, inner in enumerate(dataset.datasets):
            before = ends[place - 1] if place else 0
            yield from _inner(inner, numbers[places == place] - before)
    else:
        yield dataset, numbers
