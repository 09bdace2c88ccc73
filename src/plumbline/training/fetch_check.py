"""Tests that a record looks the same in any company: read again beside others, it must not change.

Records are read one by one, with random numbers of their own (``record_random``). What that does
not reach is what a data set keeps itself: a generator that it made, a counter, the last record. So
a few records of a batch are fetched a second time, in another order and among other records of the
data set, and must come out equal, bit for bit: in the first step that has any records, and then at
secret steps, drawn from the run's own randomness. Rows of tensors need no test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from plumbline.gradients.errors import RecordsMixError
from plumbline.mechanism.random_source import RandomSource
from plumbline.training.records import Records

_WATCHED, _COMPANY = 3, 3
_ONE_IN = 16


class Due(NamedTuple):
    """Records of a step to fetch twice.

    Attributes:
        watched: Their numbers, ``[W]``.
        again: In which order and among which others to fetch them again, ``[2 W]``: each of them
            backwards, with another before it.
    """

    watched: Tensor
    again: Tensor

    @staticmethod
    def require_equal(first: Any, again: Any) -> None:
        """Compares what was fetched for ``watched`` and for ``again``.

        Raises:
            RecordsMixError: If a record was not the same.
        """
        for one, other in zip(tree_leaves(first), tree_leaves(again), strict=True):
            if isinstance(one, Tensor) and not _same_bits(one, other[1::2].flip(0)):
                raise RecordsMixError(_NOT_THE_SAME)


class FetchCheck:
    """The tests of one run.

    Args:
        records: What is fetched from.
        source: The run's randomness; its streams ``"fetch check"`` decide when, and what.
    """

    def __init__(self, records: Records, source: RandomSource) -> None:
        self._records = records
        self._source = source
        self._first: int | None = None  # the first step with records

    def due(self, indices: Tensor, step: int) -> Due | None:
        """What to fetch twice in a step on the records ``indices`` (``[R]``), if a test is due."""
        if self._records.selected or not len(indices):
            return None
        drawn = self._source.stream("fetch check", step).uint64(1 + _WATCHED + _COMPANY).tolist()
        self._first = step if self._first is None else self._first
        if step != self._first and drawn[0] % _ONE_IN:
            return None
        places = [number % len(indices) for number in drawn[1 : 1 + _WATCHED]]
        watched = indices[places]
        others = torch.tensor([number % len(self._records) for number in drawn[1 + _WATCHED :]])
        return Due(watched, torch.stack([others, watched.flip(0)], 1).flatten())

    def test(self, indices: Tensor, step: int, key_of: Callable[[int], str]) -> None:
        """Tests before a step on the records ``indices`` (``[R]``), if a test is due.

        Args:
            indices: The step's batch.
            step: Its number.
            key_of: What the records' own random numbers depend on in a step.

        Raises:
            RecordsMixError: If a record that was fetched twice was not the same.
        """
        due = self.due(indices, step)
        if due is not None:
            first, again = (self._records.fetch(numbers, key_of(step)) for numbers in due)
            due.require_equal(first, again)


_NOT_THE_SAME = (
    "A record that was fetched twice in the same step was not the same: what it looks like depends "
    "on the records fetched before it, on the process that fetched it, or on numbers that nobody "
    "can repeat. Random augmentation may use torch's, NumPy's (np.random.rand) and Python's global "
    "generators, which are set for each record and step. A generator that the data set made itself "
    "must be made anew for each record, from these: "
    "np.random.default_rng(np.random.randint(2**31)) in __getitem__. A data set must not remember "
    "records, and one that says row_by_row must make each row from that record alone."
)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # NaN is equal to itself here.
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())
