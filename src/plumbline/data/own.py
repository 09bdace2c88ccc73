"""Your own data as a data set: tensors and torch data sets (``as_splits``).

Tensors are held in memory. Records of a torch data set stay where they are and
are read when a batch needs them; only their targets and groups are read at once. What is not
declared (classes, groups) is taken from the records, and the privacy statement says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from plumbline.data.base import Constant, Split, Splits
from plumbline.data.encoding import split
from plumbline.record_errors import RecordError, read_quietly
from plumbline.repeated_records import refuse_repeated

Groups = Sequence[int] | Tensor


def as_splits(
    data: Any,
    *,
    test: Any = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    classes: Sequence[object] | None = None,
    groups: Sequence[object] | None = None,
    sensitive_features: Groups | tuple[Groups, Groups] | None = None,
    constants: Sequence[Constant] = (),
    name: str = "own",
) -> Splits:
    """Data in one of the usual forms as a training and a test part.

    Args:
        data: ``Splits``, which are returned as they are; tensors or arrays ``(x, y)`` or
            ``(x, y, groups)``; or a map-style torch data set of such records. Or a pair of these:
            the training and the test part. (Of a DataFrame, ``table`` makes a data set.)
        test: The test part, in the form of ``data``; by default a share is split off.
        test_fraction: The share of the records to split off.
        seed: Decides which.
        classes: The classes' names, by value of y; by default those of the training records.
        groups: The same for the groups.
        sensitive_features: Each record's group, where the data has none: of the training and of the
            test part, if there are two.
        constants: What the data's own transforms use, and where it comes from. Whoever leaves out a
            number that was computed from the training records makes the privacy statement
            incomplete.
        name: The data set's name.
    """
    if isinstance(data, Splits):
        if test is not None:
            raise ValueError("The data has a test part already; leave test= out.")
        return data
    if test is None and _is_pair(data):
        data, test = data
    features: Any = sensitive_features
    of_train, of_test = (features, None) if features is None or test is None else features
    train = _part(data, of_train)
    if test is not None:
        held_out = _part(test, of_test)
        numbers = torch.arange(len(train)), torch.arange(len(held_out))
    else:
        generator = torch.Generator("cpu").manual_seed(seed)
        numbers = split(len(train), test_fraction, generator)
        train, held_out = (train.select(own) for own in numbers)
    return _splits(name, train, held_out, numbers, classes, groups, constants)


_MOST = 10_000  # classes or groups that are not declared


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
        return default_collate([read_quietly(self._data.__getitem__, k)[0] for k in numbers])

    def select(self, index: Tensor) -> Wrapped:
        """These records only."""
        return Wrapped(self._data, self._order[index])


def _splits(
    name: str,
    train: Split,
    test: Split,
    numbers: tuple[Tensor, Tensor],
    classes: Sequence[object] | None,
    groups: Sequence[object] | None,
    constants: Sequence[Constant],
) -> Splits:
    """The data set, once its values are found to be among the declared ones."""
    own = list(constants)
    class_names = _names("classes", "y", (train.y, test.y), numbers, classes)
    if classes is None:
        own.append(Constant("the number of classes", "training"))
    group_names: tuple[str, ...] = ()
    if (train.sensitive_features is None) != (test.sensitive_features is None):
        raise ValueError("One of the training and the test part has groups; both must, or neither.")
    if train.sensitive_features is not None and test.sensitive_features is not None:
        features = train.sensitive_features, test.sensitive_features
        group_names = _names("groups", "sensitive_features", features, numbers, groups)
        if groups is None:
            own.append(Constant("the number of groups", "training"))
    return Splits(name, train, test, class_names, group_names, tuple(own))


def _names(
    kind: str,
    what: str,
    parts: tuple[Tensor, Tensor],
    numbers: tuple[Tensor, Tensor],
    given: Sequence[object] | None,
) -> tuple[str, ...]:
    """The names of classes or groups; the values must be their places."""
    train, _ = parts
    count = int(train.max()) + 1 if given is None and len(train) else len(given or ())
    if given is None and count > _MOST:
        raise RecordError(
            f"{what} of record {int(numbers[0][train.argmax()])} is above {_MOST:,}; {kind} are "
            f"numbered from 0 on without gaps. If there are so many, declare them: {kind}=."
        )
    for values, own in zip(parts, numbers, strict=True):
        outside = own[(values < 0) | (values >= count)]
        if len(outside):
            raise RecordError(
                f"{what} of record {int(outside.min())} is out of range; with {count} {kind} each "
                f"record must have a number from 0 to {count - 1}."
            )
    return tuple(map(str, range(count) if given is None else given))


def _is_pair(data: Any) -> bool:
    """Whether this is (train, test) rather than (x, y)."""
    return (
        isinstance(data, tuple | list)
        and len(data) == 2
        and not any(isinstance(one, Tensor | np.ndarray) for one in data)
    )


def _part(data: Any, features: Groups | None = None) -> Split:
    if isinstance(data, Split):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | list) and all(isinstance(x, Tensor | np.ndarray) for x in data):
        if len(data) not in (2, 3):
            raise ValueError(f"There are {len(data)} tensors; give (x, y) or (x, y, groups).")
        x, y, *third = (torch.as_tensor(one) for one in data)
        rows: Tensor | Wrapped = x.float() if x.dtype == torch.float64 else x
    else:
        refuse_repeated(data)
        y, *third = _read(data)
        rows = Wrapped(data)
    if features is not None:
        third = [torch.as_tensor(features)]
    return Split(rows, _whole("y", y), _whole("sensitive_features", third[0]) if third else None)


def _read(data: Any) -> tuple[Tensor, ...]:
    """The y of a torch data set's records, and their groups if they have any, ``[n]`` each."""
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TypeError(
            f"Data of type {type(data).__name__} has no length or cannot be asked for a record by "
            "number. Give tensors (x, y), a map-style torch data set or a table."
        )
    given = getattr(data, "targets", None)  # torchvision's
    if given is not None and len(given) == len(data):
        return (torch.as_tensor(given),)
    records = [tuple(read_quietly(data.__getitem__, k)[1:]) for k in range(len(data))]
    if {len(one) for one in records} not in ({1}, {2}):
        raise ValueError("There must be records, each of them (x, y) or each (x, y, group).")
    columns = zip(*records, strict=True)
    return tuple(
        torch.tensor([_number(name, number, one) for number, one in enumerate(values)])
        for name, values in zip(("y", "sensitive_features"), columns, strict=False)
    )


def _number(name: str, record: int, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise RecordError(
            f"{name} of record {record} is of type {type(value).__name__} and is no number; give "
            "the class or group from 0 on."
        ) from None


def _whole(what: str, values: Tensor) -> Tensor:
    """Classes or groups as numbers, ``[n]`` of int64."""
    whole = values.long()
    if whole.dim() != 1 or not torch.equal(whole.to(values), values):
        raise ValueError(
            f"{what} has the shape {list(values.shape)} and the type {values.dtype}; it must be "
            "one whole number per record, the class or group from 0 on."
        )
    return whole
