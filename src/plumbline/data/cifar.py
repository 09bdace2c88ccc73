"""CIFAR-10 and CIFAR-100, from the published binary version or the python version (pickles).

The binary version is mapped: a batch is records of one label byte (CIFAR-100: coarse and fine) and
3,072 pixels, and only the records that are fetched are read. The python version is held in memory,
and its pickles are read without running anything: only arrays, numbers and strings are accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plumbline.data.base import Splits, dataset
from plumbline.data.encoding import check_one_of
from plumbline.data.files import DataError, File, data_folder
from plumbline.data.images import Bytes, Folder, Mapped, Pixels, batch_files, labels, splits
from plumbline.data.pickles import read_pickle

Version = Literal["binary", "python"]
Files = dict[str, tuple[tuple[File, ...], tuple[File, ...]]]  # by version: training, test

Values = npt.NDArray[np.generic]

PIXELS = 3 * 32 * 32
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
CIFAR100_CLASSES = (
    *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle"),
    *("bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle"),
    *("caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch"),
    *("crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox"),
    *("girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion"),
    *("lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom"),
    *("oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree"),
    *("plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road"),
    *("rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake"),
    *("spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank"),
    *("telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle"),
    *("wardrobe", "whale", "willow_tree", "wolf", "woman", "worm"),
)
CIFAR100_GROUPS = (
    *("aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables"),
    *("household_electrical_devices", "household_furniture", "insects", "large_carnivores"),
    *("large_man-made_outdoor_things", "large_natural_outdoor_scenes"),
    *("large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates", "people"),
    *("reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2"),
)

_URL = "https://www.cs.toronto.edu/~kriz/"


def _archive(folder: str, name: str, md5: str) -> File:
    return File(f"{folder}/{name}", md5, url=_URL + name, unpack=folder)


CIFAR10_ARCHIVE = _archive("cifar10", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
CIFAR100_ARCHIVE = _archive(
    "cifar100", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"
)


def _binary(name: str, md5: str | None = None) -> File:
    where = f"cifar10/cifar-10-batches-bin/{name}.bin"
    return File(where, md5, 30_730_000, _URL + "cifar-10-binary.tar.gz")


def _python(name: str, md5: str) -> File:
    where = f"cifar10/cifar-10-batches-py/{name}"
    return File(where, md5, url=_URL + "cifar-10-python.tar.gz")


CIFAR10: Files = {
    # The checksums of batches 3 to 5 are not published, only the archive's.
    "binary": (
        (
            _binary("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            _binary("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
            *(_binary(f"data_batch_{number}") for number in (3, 4, 5)),
        ),
        (_binary("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),),
    ),
    "python": (
        (
            _python("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            _python("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            _python("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            _python("data_batch_4", "634d18415352ddfa80567beed471001a"),
            _python("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        (_python("test_batch", "40351d587109b95175f43aff81a1287e"),),
    ),
}


def _files100(version: str, name: str, md5: str | None, size: int | None) -> tuple[File, ...]:
    folder, archive = f"cifar100/cifar-100-{version}", f"cifar-100-{version}.tar.gz"
    return (File(f"{folder}/{name}", md5, size, _URL + archive),)


CIFAR100: Files = {
    "binary": (
        _files100("binary", "train.bin", None, 153_700_000),
        _files100("binary", "test.bin", None, 30_740_000),
    ),
    "python": (
        _files100("python", "train", "16019d7e3df5f24257cddd939b257f8d", None),
        _files100("python", "test", "f0ef6b0ae62326f3e7ffdfab6717acfc", None),
    ),
}


@dataset("cifar10", (CIFAR10_ARCHIVE,))
def cifar10(
    *,
    folder: Folder = None,
    version: Version | None = None,
    allow_partial: bool = False,
    normalise: bool = False,
    verify: bool = True,
) -> Splits:
    """CIFAR-10: 50,000 and 10,000 images ``[3, 32, 32]`` of ten classes, which are the groups too.

    Args:
        folder: The data folder.
        version: "binary" or "python"; by default the one that is there, binary if both are.
        allow_partial: Whether to load the batches that are there when some are missing.
        normalise: Whether to use the published means and standard deviations instead of pixels in
            [0, 1].
        verify: Whether to compare the files' checksums with the published ones.
    """
    statistics = Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    parts = _load("cifar10", CIFAR10, {"labels": 10}, folder, version, allow_partial, verify)
    train, test = ((x, y, y) for x, (y,) in parts)
    return splits(
        "cifar10",
        train,
        test,
        classes=CIFAR10_CLASSES,
        groups=CIFAR10_CLASSES,
        published=statistics,
        normalise=normalise,
    )


@dataset("cifar100", (CIFAR100_ARCHIVE,))
def cifar100(
    *,
    folder: Folder = None,
    version: Version | None = None,
    normalise: bool = False,
    verify: bool = True,
) -> Splits:
    """CIFAR-100: 50,000 and 10,000 images ``[3, 32, 32]`` of 100 classes, in 20 groups.

    The groups are the data set's own superclasses ("coarse labels"), five classes each.

    Args:
        folder: The data folder.
        version: As in ``cifar10``.
        normalise: As in ``cifar10``.
        verify: As in ``cifar10``.
    """
    statistics = Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    keys = {"coarse_labels": 20, "fine_labels": 100}
    parts = _load("cifar100", CIFAR100, keys, folder, version, False, verify)
    train, test = ((x, fine, coarse) for x, (coarse, fine) in parts)
    return splits(
        "cifar100",
        train,
        test,
        classes=CIFAR100_CLASSES,
        groups=CIFAR100_GROUPS,
        published=statistics,
        normalise=normalise,
    )


def _load(
    name: str,
    files: Files,
    keys: dict[str, int],
    folder: Folder,
    version: Version | None,
    allow_partial: bool,
    verify: bool,
) -> list[tuple[Mapped, list[Tensor]]]:
    """For the training and the test part: the images, and the labels ``[n]`` for each of ``keys``.

    ``keys`` are the labels' names in the python version, in the order of the binary version, each
    with its number of values.
    """
    if version is None:
        version = _version_there(files, data_folder(folder))
    check_one_of("version", version, files)
    paths = batch_files(name, *files[version], folder, allow_partial=allow_partial, verify=verify)
    read = _read_binary if version == "binary" else _read_python
    parts = []
    for part in paths:
        blocks, columns = [], []
        for path in part:
            pixels, of = read(path, tuple(keys))
            blocks.append(pixels)
            columns.append(
                [labels(of[:, place], count, path) for place, count in enumerate(keys.values())]
            )
        parts.append((Mapped(blocks), [torch.cat(of) for of in zip(*columns, strict=True)]))
    return parts


def _version_there(files: Files, root: Path) -> Version:
    """The version with more files there; binary for none or a tie."""
    there = {
        version: sum((root / file.path).is_file() for part in parts for file in part)
        for version, parts in files.items()
    }
    return "python" if there["python"] > there["binary"] else "binary"


def _read_binary(path: Path, keys: tuple[str, ...]) -> tuple[Bytes, Values]:
    """Images ``[n, 3, 32, 32]`` that stay in the file, and labels ``[n, len(keys)]``."""
    size, record = path.stat().st_size, len(keys) + PIXELS
    if size % record or not size:
        raise DataError(
            f"{path} has {size:,} bytes where a multiple of {record:,} (one record) is expected: "
            "it is truncated, or another file. Delete it and get it again."
        )
    # The labels are spread over the whole file: read them through a separate map, then drop it.
    of = np.memmap(path, np.uint8, "r").reshape(-1, record)[:, : len(keys)].copy()
    rows = np.memmap(path, np.uint8, "r").reshape(-1, record)[:, len(keys) :]
    return rows.reshape(-1, 3, 32, 32), of


def _read_python(path: Path, keys: tuple[str, ...]) -> tuple[Bytes, Values]:
    """Images ``[n, 3, 32, 32]`` in memory, and labels ``[n, len(keys)]``."""
    batch = read_pickle(path)
    wanted = ("data", *keys)
    if not isinstance(batch, dict) or not set(wanted) <= set(batch):
        found = sorted(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        raise DataError(f"{path} has {found} where {wanted} are expected: it is another file.")
    pixels = np.asarray(batch["data"])
    of = np.stack([np.asarray(batch[key]) for key in keys], axis=1)
    if pixels.dtype != np.uint8 or pixels.shape != (len(of), PIXELS):
        raise DataError(
            f"{path} has images of shape {pixels.shape} and type {pixels.dtype} where "
            f"({len(of)}, {PIXELS}) and uint8 are expected: it is another file."
        )
    return pixels.reshape(-1, 3, 32, 32), of
