"""Arrays that take long to compute, kept in a file that knows what it was computed from.

The file lies in the platform's cache folder: nobody's data folder is written to, which may be
shared or read-only. It holds the records themselves: it is as private as the source is.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.data.files import cache_folder

Arrays = Mapping[str, NDArray[Any]]


def cached(source: Path, settings: str, compute: Callable[[], Arrays]) -> Arrays:
    """What ``compute`` gives for a source file, computed again only when something has changed.

    Args:
        source: The file that it is computed from; known by its size and time of change.
        settings: In words, everything else that decides the result.
        compute: Gives the arrays.
    """
    facts = source.stat()
    key = f"{source.resolve()} {facts.st_size} {facts.st_mtime_ns} {settings}"
    name = f"{source.name}.{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    place = cache_folder() / "computed" / name
    arrays = _read(place)
    if arrays is None:
        arrays = compute()
        _write(place, arrays)
    return arrays


def _read(path: Path) -> Arrays | None:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return dict(stored)
    except Exception:  # none there, or one that was damaged, which can look like anything
        return None  # it is computed again


def _write(path: Path, arrays: Arrays) -> None:
    """Writes the arrays; a file appears only when it is complete, readable for its owner alone."""
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
            part = Path(stream.name)
            np.savez(stream, allow_pickle=False, **arrays)
        part.replace(path)
    except OSError:  # read-only, or full: it can be computed again
        if part is not None:
            part.unlink(missing_ok=True)
