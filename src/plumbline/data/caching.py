"""Arrays that take long to compute, cached in a file that is named after what they depend on.

The file is in the platform's cache folder: data folders, which may be shared or read-only, are not
written to. It holds the records themselves, so it is as private as the source.
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
    """The result of ``compute`` for a source file, computed again only when something has changed.

    Args:
        source: The file that it is computed from, identified by its size and modification time.
        settings: Everything else that decides the result, as text.
        compute: Returns the arrays.
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
    except Exception:  # missing or damaged, and damage can look like anything
        return None  # compute it again


def _write(path: Path, arrays: Arrays) -> None:
    """Writes the arrays; the file appears only when complete, readable by its owner alone."""
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
            part = Path(stream.name)
            np.savez(stream, allow_pickle=False, **arrays)
        part.replace(path)
    except OSError:  # read-only or full: it can be computed again
        if part is not None:
            part.unlink(missing_ok=True)
