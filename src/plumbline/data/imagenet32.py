"""ImageNet32 (Chrabaszcz et al. 2017): train_data_batch_1.npz to 10 and val_data.npz.

An uncompressed array is mapped from its npz; a compressed one is unpacked once, into a file that is
mapped from then on. None of the 3.9 GB of pixels is held in memory.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from plumbline.data.base import Splits, dataset
from plumbline.data.decoding import unpacked
from plumbline.data.files import DataError, File, data_folder, reading
from plumbline.data.images import Bytes, Folder, Mapped, Pixels, batch_files, labels, splits

PIXELS = 3 * 32 * 32
CLASSES = 1000

_MD5 = (
    "464fde20de6eb44c28cc1a8c11544bb1",
    "bdb56e71882c3fd91619d789d5dd7c79",
    "83ff36d76ea26867491a281ea6e1d03b",
    "98ff184fe109d5c2a0f6da63843880c7",
    "62b8803e13c3e6de9498da7aaaae57c8",
    "e0b06665f890b029f1d8d0a0db26e119",
    "9731f469aac1622477813c132c5a847a",
    "60aed934b9d26b7ee83a1a83bdcfbe0f",
    "b96328e6affd718660c2561a6fe8c14c",
    "1dc618d544c554220dd118f72975470c",
)
# No address: users must sign in and accept the terms.
TRAIN = tuple(
    File(f"imagenet32/train_data_batch_{number}.npz", md5)
    for number, md5 in enumerate(_MD5, start=1)
)
TEST = (File("imagenet32/val_data.npz", "a8c04a389f2649841fb7a01720da9dd9"),)
NAMES = "imagenet32/map_clsloc.txt"


@dataset("imagenet32", (*TRAIN, *TEST))
def imagenet32(
    *,
    folder: Folder = None,
    allow_partial: bool = False,
    normalise: bool = False,
    verify: bool = True,
) -> Splits:
    """ImageNet32: 1,281,167 and 50,000 images ``[3, 32, 32]`` of 1,000 classes, also the groups.

    Available at https://image-net.org/download-images.php after signing in ("Imagenet32", npz).
    The test part is ImageNet's validation part. The labels are the files' minus one; the classes
    have the names in map_clsloc.txt if it is there, else the files' numbers.

    Args:
        folder: The data folder.
        allow_partial: Whether to load the batches that are there when some are missing.
        normalise: Whether to use ImageNet's published means and standard deviations instead of
            pixels in [0, 1].
        verify: Whether to compare the files' checksums with the published ones, which reads them
            all (some ten seconds).
    """
    paths = batch_files(
        "imagenet32", TRAIN, TEST, folder, allow_partial=allow_partial, verify=verify
    )
    train, test = (_part(part, folder) for part in paths)
    classes = _names(data_folder(folder) / NAMES)
    statistics = Pixels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return splits("imagenet32", train, test, classes, statistics, normalise)


def _part(paths: list[Path], folder: Folder) -> tuple[Mapped, Tensor, Tensor]:
    batches = [_read(path, folder) for path in paths]
    y = torch.cat([of for _, of in batches])
    return Mapped([pixels for pixels, _ in batches]), y, y


def _read(path: Path, folder: Folder) -> tuple[Bytes, Tensor]:
    """Images ``[n, 3, 32, 32]`` that stay in a file, and their labels ``[n]``."""
    file = File(path.name)
    with reading(file, path):
        archive = zipfile.ZipFile(path)
    with archive:
        missing = {"data.npy", "labels.npy"} - set(archive.namelist())
        if missing:
            raise DataError(
                f"{path} has {archive.namelist()} and not {sorted(missing)}: it is another file."
            )
        try:
            with reading(file, path), archive.open("labels.npy") as stream:
                numbers = np.lib.format.read_array(stream, allow_pickle=False).astype(np.int64)
            with reading(file, path), archive.open("data.npy") as stream:
                shape, offset = _shape(stream, path), stream.tell()
        except DataError:
            raise
        except Exception as error:  # numpy evaluates the header, which can fail in many ways
            raise DataError(f"{path} has no arrays of numbers in it: {error}") from error
        of = labels(numbers - 1, CLASSES, path)
        if shape != (len(of), PIXELS):
            raise DataError(
                f"{path} has images of shape {shape} where {(len(of), PIXELS)} is expected: it is "
                "another file."
            )
        member = archive.getinfo("data.npy")
        if member.compress_type == zipfile.ZIP_STORED:
            start = _start(path, member) + offset
            pixels: Bytes = np.memmap(path, np.uint8, "r", start, shape)
        else:
            pixels = unpacked(path, "data", shape, _blocks(file, path, archive), folder)
    return pixels.reshape(-1, 3, 32, 32), of


def _shape(stream: IO[bytes], path: Path) -> tuple[int, ...]:
    """The shape of an array file of bytes, from its header."""
    version = np.lib.format.read_magic(stream)
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, kind = header(stream)
    if kind != np.uint8 or fortran:
        raise DataError(f"{path} has images of type {kind} where uint8 is expected.")
    return tuple(shape)


def _start(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the bytes of an uncompressed member begin: after a 30-byte header and two strings."""
    with path.open("rb") as stream:
        stream.seek(member.header_offset + 26)
        lengths = np.frombuffer(stream.read(4), "<u2")
    return member.header_offset + 30 + int(lengths.sum())


def _blocks(file: File, path: Path, archive: zipfile.ZipFile) -> Iterator[Bytes]:
    with archive.open("data.npy") as stream:
        _shape(stream, path)
        while True:
            with reading(file, path):
                block = stream.read(1 << 20)
            if not block:
                return
            yield np.frombuffer(block, np.uint8)


def _names(path: Path) -> tuple[str, ...]:
    """The classes' names, from lines such as ``n02119789 1 kit_fox``."""
    if not path.is_file():
        return tuple(str(number + 1) for number in range(CLASSES))
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line]
    named = {int(number): name for _, number, name in lines}
    if set(named) != set(range(1, CLASSES + 1)):
        raise DataError(
            f"{path} names {len(named)} classes where 1 to {CLASSES} are expected. Get it again, "
            "or remove it."
        )
    return tuple(named[number + 1] for number in range(CLASSES))
