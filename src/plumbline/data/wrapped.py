"""Any map-style torch data sets as a data set here: ``from_torch``.

Records stay where they are and are read when a batch needs them; only the targets are read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from plumbline.data.base import Constant, Split, Splits


def from_torch(
    train: Any,
    test: Any,
    *,
    classes: Sequence[str],
    sensitive_features: tuple[Sequence[int] | Tensor, Sequence[int] | Tensor] | None = None,
    groups: Sequence[str] = (),
    constants: Sequence[Constant] = (),
    name: str = "own",
) -> Splits:
    """Two torch data sets of (x, y) as the training and the test part.

    Args:
        train: A map-style data set: ``len(train)``, and ``train[k]`` gives (x, y).
        test: The same for the test part.
        classes: The classes' names, by value of y.
        sensitive_features: The group of each training and of each test record.
        groups: The groups' names, by value of ``sensitive_features``.
        constants: What the data sets' own transforms use, and where it comes from. Whoever leaves
            out a number that was computed from the training records makes the privacy statement
            incomplete.
        name: The data set's name.
    """
    own = (None, None) if sensitive_features is None else sensitive_features
    return Splits(
        name,
        _part(train, classes, own[0], groups),
        _part(test, classes, own[1], groups),
        classes=tuple(classes),
        groups=tuple(groups),
        constants=tuple(constants),
    )


class Wrapped:
    """The x of a torch data set's records, read when they are asked for."""

    def __init__(self, data: Any, order: Tensor | None = None) -> None:
        self._data = data
        self._order = torch.arange(len(data)) if order is None else order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: Tensor) -> Any:
        """Records ``index`` (``[R]``), collated as torch's data loader does."""
        numbers = self._order[index].tolist()
        if not numbers:
            return default_collate([self._data[0][0]])[:0]
        return default_collate([self._data[number][0] for number in numbers])

    def select(self, index: Tensor) -> Wrapped:
        """These records only."""
        return Wrapped(self._data, self._order[index])


def _part(
    data: Any,
    classes: Sequence[str],
    features: Sequence[int] | Tensor | None,
    groups: Sequence[str],
) -> Split:
    y = _targets(data, len(classes))
    if features is None:
        return Split(Wrapped(data), y)
    own = torch.as_tensor(features)
    if groups and len(own) and int(own.max()) >= len(groups):
        raise ValueError(
            f"sensitive_features has the value {int(own.max())}, but there are {len(groups)} "
            f"groups: {', '.join(groups)}."
        )
    return Split(Wrapped(data), y, own)


def _targets(data: Any, classes: int) -> Tensor:
    """The y of all records, ``[n]``: torchvision's ``targets``, or read one by one."""
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TypeError(
            f"A data set of type {type(data).__name__} has no length or cannot be asked for a "
            "record by number. Give a map-style torch data set."
        )
    given = getattr(data, "targets", None)
    if given is None or len(given) != len(data):
        given = [int(data[number][1]) for number in range(len(data))]
    y = torch.as_tensor(given).long()
    if y.dim() != 1 or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes):
        raise ValueError(
            f"The targets of {type(data).__name__} have the shape {list(y.shape)} and lie between "
            f"{int(y.min())} and {int(y.max())}; with {classes} classes they must be one number "
            f"per record, from 0 to {classes - 1}."
        )
    return y
