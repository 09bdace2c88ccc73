"""Reads pickles of arrays without running anything that the file asks for.

A pickle may name any function of any module and have it called. This reader accepts only the names
of the parts of a numpy array. Nor can a few bytes request much memory, by a memo with billions of
entries or by an array before its content is seen.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from plumbline.data.files import DataError, md5_of


def read_pickle(path: Path) -> Any:
    """The content of a pickle, if it is numbers, strings, lists, dicts and numpy arrays.

    Python 2 strings are read as Latin-1, which arrays need.

    Raises:
        DataError: If it is damaged, or asks for anything else.
    """
    try:
        data = path.read_bytes()
        _check_places(data)
        return _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
    except _Refused as error:
        raise DataError(
            f"{path} asks for {error}, which no published file does. It was not run. Delete the "
            "file, and get it from its publisher."
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(
            f"{path} ({path.stat().st_size:,} bytes, md5 checksum {md5_of(path)}) is not a pickle "
            f"that can be read: {error}. It is truncated, damaged, or another file. Delete it and "
            "get it again."
        ) from error


class _Refused(pickle.UnpicklingError):
    pass


def _check_places(data: bytes) -> None:
    """Refuses a memo index that is larger than the file, since memory is allocated for it."""
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise _Refused(f"room for {argument:,} values")


def _empty(kind: Any, shape: Any, code: Any) -> Any:
    """An array that is filled later, with the shape that its content then has."""
    if kind is not np.ndarray or shape != (0,):
        raise _Refused(f"an array of shape {shape} before its content")
    return np.empty(0, "b")


def _dtype(kind: Any, align: Any = False, copy: Any = False) -> Any:
    # Old pickles have 0 and 1 here, which numpy 2.4 warns about.
    return np.dtype(kind, align=bool(align), copy=bool(copy))


def _encoded(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise _Refused(f"the encoding {encoding!r}")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "_reconstruct"):
                return _empty
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return _dtype
            case "_codecs", "encode":  # bytes, pickled by Python 3 for Python 2
                return _encoded
        raise _Refused(f"{module}.{name}")
