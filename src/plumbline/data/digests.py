"""Digests of data: what tells whether two runs were made on the same records.

A digest of private records is itself private: anyone who can guess all records but one can test
guesses of that one. It is kept in a file marked PRIVATE, never among the settings.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor


def file_digest(path: str | os.PathLike[str]) -> str:
    """A file's SHA-256, in hexadecimal; computed once for a file that has not changed."""
    found = Path(path)
    state = found.stat()
    return _file_digest(str(found.resolve()), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _file_digest(path: str, changed: int, size: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def object_digest(data: Any) -> str:
    """The SHA-256 of records in memory: tensors, arrays, data frames, and nestings of them.

    Of an object that keeps its records elsewhere (a torch data set), its type and length are all
    that is compared.
    """
    digest = hashlib.sha256()
    _feed(digest, data)
    return digest.hexdigest()


def _feed(digest: Any, data: Any) -> None:
    if isinstance(data, Tensor):
        data = data.detach().cpu().numpy()
    if isinstance(data, np.ndarray):
        digest.update(f"<{data.dtype}{data.shape}>".encode())
        plain = data.dtype != object
        digest.update(
            np.ascontiguousarray(data).tobytes() if plain else repr(data.tolist()).encode()
        )
    elif hasattr(data, "to_csv"):  # a pandas data frame
        digest.update(data.to_csv().encode())
    elif isinstance(data, Mapping):
        for name, part in data.items():
            digest.update(f"<{name}>".encode())
            _feed(digest, part)
    elif isinstance(data, tuple | list):
        for part in data:
            _feed(digest, part)
    elif hasattr(data, "tensors"):  # a torch TensorDataset
        _feed(digest, data.tensors)
    elif hasattr(data, "x") and hasattr(data, "y"):  # a split of plumbline.data
        _feed(digest, (data.x, data.y))
    elif hasattr(data, "train") and hasattr(data, "test"):
        _feed(digest, (data.train, data.test))
    else:
        length = len(data) if hasattr(data, "__len__") else "?"
        digest.update(f"<{type(data).__qualname__} {length}>".encode())
