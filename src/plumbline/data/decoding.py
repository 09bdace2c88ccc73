"""Decodes image files to bytes; arrays that are unpacked once and then mapped."""

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

    An image of another size is cropped to its central square, as long as its shorter side, and
    scaled (bilinear, antialiased). Other colour modes are converted.

    Args:
        stream: The file.
        what: Its name, for errors.
        size: The height and width of the result.
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
        # Not resize(box=...): its filter also sees what is outside the box.
        square = pixels.crop((left, top, left + side, top + side))
        pixels = square.resize((size, size), Image.Resampling.BILINEAR)
    array = np.asarray(pixels, np.uint8).reshape(size, size, -1)
    return array.transpose(2, 0, 1)


def unpacked(
    source: Path, recipe: str, shape: tuple[int, ...], rows: Iterable[Bytes], folder: Folder
) -> Bytes:
    """The array of ``rows``, ``[*shape]``, written to a file the first time and mapped from it.

    The file is in the data folder's ``unpacked`` if that is writable, else in the platform's cache
    folder. It is found again by the source's name, size and modification time.

    Args:
        source: The file that the rows come from.
        recipe: What was done to them, for the name.
        shape: The shape of the whole array.
        rows: Its rows, one by one or several at once; only used if there is no such file yet.
        folder: The data folder.
    """
    state = source.stat()
    root = data_folder(folder)
    # A folder without write bits should stay as it is, even where root could write to it.
    writable = os.access(root, os.W_OK) and root.stat().st_mode & 0o222
    place = (root if writable else cache_folder()) / "unpacked"
    path = place / f"{source.stem}-{recipe}-{state.st_size}-{state.st_mtime_ns}.npy"
    found = _mapped(path, shape)
    if found is None:
        place.mkdir(parents=True, exist_ok=True)
        # Written under another name and renamed: an interrupted run leaves no half file.
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
    """The array in the file; None if there is none, or a different one."""
    try:
        array: Bytes = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:  # missing or damaged, and damage can look like anything
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _write(path: Path, shape: tuple[int, ...], rows: Iterable[Bytes]) -> None:
    with path.open("wb") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in rows:
            stream.write(np.ascontiguousarray(block).data)
