"""Image files to bytes, and arrays that are unpacked once and then mapped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Literal

import numpy as np

from plumbline.data.files import DataError, cache_folder, data_folder
from plumbline.data.images import Bytes, Folder


def decode(
    stream: Path | IO[bytes], what: str, size: int, mode: Literal["RGB", "L"] = "RGB"
) -> Bytes:
    """An image file's pixels, ``[C, size, size]``.

    An image of another size is cropped to the square in its centre, as large as its shorter side
    is long, and that is scaled (bilinear, antialiased). Other colour modes are converted.

    Args:
        stream: The file.
        what: Its name, for errors.
        size: The height and width wanted.
        mode: Three channels, or one.

    Raises:
        DataError: Naming the file, if it cannot be decoded.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "Reading image files needs Pillow: pip install 'plumbline[images]'."
        ) from error

    try:
        with Image.open(stream) as image:
            pixels = image.convert(mode)
    except Exception as error:  # each of Pillow's decoders fails in its own way
        raise DataError(
            f"{what} is not an image that can be decoded: {error}. It is truncated, damaged, or "
            "another kind of file. Replace or remove it."
        ) from error
    if pixels.size != (size, size):
        width, height = pixels.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        # Not resize(box=...), whose filter also sees what is outside the box.
        square = pixels.crop((left, top, left + side, top + side))
        pixels = square.resize((size, size), Image.Resampling.BILINEAR)
    array = np.asarray(pixels, np.uint8).reshape(size, size, -1)
    return array.transpose(2, 0, 1)


def unpacked(
    source: Path, recipe: str, shape: tuple[int, ...], rows: Iterable[Bytes], folder: Folder
) -> Bytes:
    """What ``rows`` gives, ``[*shape]``, written to a file the first time and mapped from it.

    The file is kept in the data folder's ``unpacked`` where that may be written to, else in the
    platform's cache folder. It is found again by the source's name, size and time of change.

    Args:
        source: The file that the rows come from.
        recipe: What was done to them, for the name.
        shape: The whole array's.
        rows: Its rows, one by one or several at once; only asked for if there is no such file yet.
        folder: The data folder.
    """
    state = source.stat()
    root = data_folder(folder)
    # A folder without write bits is meant to stay as it is, even where root could write to it.
    writable = os.access(root, os.W_OK) and root.stat().st_mode & 0o222
    place = (root if writable else cache_folder()) / "unpacked"
    path = place / f"{source.stem}-{recipe}-{state.st_size}-{state.st_mtime_ns}.npy"
    found = _mapped(path, shape)
    if found is None:
        place.mkdir(parents=True, exist_ok=True)
        # Written beside its place and renamed: a run that is stopped leaves no half file.
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            _write(part, shape, rows)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        found = _mapped(path, shape)
        assert found is not None
    return found


def _mapped(path: Path, shape: tuple[int, ...]) -> Bytes | None:
    """The array in the file; None if there is none, or another."""
    try:
        array: Bytes = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:  # none there, or one that was damaged, which can look like anything
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _write(path: Path, shape: tuple[int, ...], rows: Iterable[Bytes]) -> None:
    with path.open("wb") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in rows:
            stream.write(np.ascontiguousarray(block).data)
