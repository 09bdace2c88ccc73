"""Random numbers of a record's own, while code of the user's reads it.

A data set that augments at random draws from global generators: torch's, NumPy's (``np.random.*``)
and Python's ``random``. Left alone, they make what one record looks like depend on how many were
read before it. Here they are set anew for every record, from a key (which the run and the step
decide) and the record's number, so that a record looks the same in any company, order or process,
and again whenever it is read in the same step. Afterwards the user's generators are as they were.

Generators of other devices are not set; ``fetch_check`` refuses records that depend on them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

Row = TypeVar("Row")


def read_alone(read: Callable[[int], Row], numbers: Iterable[int], key: str) -> list[Row]:
    """Reads records one after the other, each with random numbers of its own.

    Args:
        read: Reads the record with this number.
        numbers: The records' numbers.
        key: What the random numbers depend on beside the record's number: the run and the step. It
            is a plain string, so that a worker process can be given it.
    """
    with kept_generators():
        rows = []
        for number in numbers:
            set_generators(key, number)
            rows.append(read(number))
        return rows


def set_generators(key: str, number: int) -> None:
    """Sets the global generators to what belongs to this key and record."""
    named = f"record {number} {key}".encode()
    digest = hashlib.blake2b(named, digest_size=20).digest()
    # A hundred times cheaper than torch.manual_seed, which goes to every device.
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    random.seed(int.from_bytes(digest[8:16], "little"))
    np.random.seed(int.from_bytes(digest[16:], "little"))  # noqa: NPY002


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restores the global generators when the block ends, whatever happens in it."""
    own = torch.default_generator.get_state()
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(own)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
