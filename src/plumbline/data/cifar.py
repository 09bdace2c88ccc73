"""CIFAR-10 and CIFAR-100, from the published binary version.

It is mapped: a batch is records of one label byte (CIFAR-100: coarse and fine) and 3,072 pixels,
and only the records that are fetched are read. (Who has the python version, a pickle, can give
torchvision's data set as it is: ``as_splits``.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plumbline.data.base import Splits, dataset
from plumbline.data.files import DataError, File
from plumbline.data.images import Bytes, Folder, Mapped, Pixels, batch_files, labels, splits

Files = tuple[tuple[File, ...], tuple[File, ...]]  # training, test

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
    return File(where, md5, 30_730_000, CIFAR10_ARCHIVE.url)


# The checksums of batches 3 to 5 are not published, only the archive's.
CIFAR10: Files = (
    (
        _binary("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        _binary("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
        *(_binary(f"data_batch_{number}") for number in (3, 4, 5)),
    ),
    (_binary("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),),
)
CIFAR100: Files = (
    (File("cifar100/cifar-100-binary/train.bin", None, 153_700_000, CIFAR100_ARCHIVE.url),),
    (File("cifar100/cifar-100-binary/test.bin", None, 30_740_000, CIFAR100_ARCHIVE.url),),
)


@dataset("cifar10", (CIFAR10_ARCHIVE,))
def cifar10(
    *,
    folder: Folder = None,
    allow_partial: bool = False,
    normalise: bool = False,
    verify: bool = True,
) -> Splits:
    """CIFAR-10: 50,000 and 10,000 images ``[3, 32, 32]`` of ten classes, which are the groups too.

    Args:
        folder: The data folder.
        allow_partial: Whether to load the batches that are there when some are missing.
        normalise: Whether to use the published means and standard deviations instead of pixels in
            [0, 1].
        verify: Whether to compare the files' checksums with the published ones.
    """
    statistics = Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    parts = _load("cifar10", CIFAR10, (10,), folder, allow_partial, verify)
    train, test = ((x, y, y) for x, (y,) in parts)
    return splits("cifar10", train, test, CIFAR10_CLASSES, statistics, normalise)


@dataset("cifar100", (CIFAR100_ARCHIVE,))
def cifar100(*, folder: Folder = None, normalise: bool = False, verify: bool = True) -> Splits:
    """CIFAR-100: 50,000 and 10,000 images ``[3, 32, 32]`` of 100 classes, in 20 groups.

    The groups are the data set's own superclasses ("coarse labels"), five classes each.

    Args:
        folder: The data folder.
        normalise: As in ``cifar10``.
        verify: As in ``cifar10``.
    """
    statistics = Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    parts = _load("cifar100", CIFAR100, (20, 100), folder, False, verify)
    train, test = ((x, fine, coarse) for x, (coarse, fine) in parts)
    names = CIFAR100_CLASSES, statistics, normalise, CIFAR100_GROUPS
    return splits("cifar100", train, test, *names)


def _load(
    name: str,
    files: Files,
    values: tuple[int, ...],
    folder: Folder,
    allow_partial: bool,
    verify: bool,
) -> list[tuple[Mapped, list[Tensor]]]:
    """For the training and the test part: the images, and each kind of label, ``[n]``.

    ``values`` says how many values each kind of label has, in the order of their bytes.
    """
    parts = []
    for paths in batch_files(name, *files, folder, allow_partial=allow_partial, verify=verify):
        blocks, columns = [], []
        for path in paths:
            pixels, of = _read(path, len(values))
            blocks.append(pixels)
            columns.append(
                [labels(of[:, place], count, path) for place, count in enumerate(values)]
            )
        parts.append((Mapped(blocks), [torch.cat(of) for of in zip(*columns, strict=True)]))
    return parts


def _read(path: Path, kinds: int) -> tuple[Bytes, Bytes]:
    """Images ``[n, 3, 32, 32]`` that stay in the file, and labels ``[n, kinds]``."""
    size, record = path.stat().st_size, kinds + PIXELS
    if size % record or not size:
        raise DataError(
            f"{path} has {size:,} bytes where a multiple of {record:,} (one record) is expected: "
            "it is truncated, or another file. Delete it and get it again."
        )
    # The labels are spread over the whole file: read them through a separate map, then drop it.
    of = np.memmap(path, np.uint8, "r").reshape(-1, record)[:, :kinds].copy()
    rows = np.memmap(path, np.uint8, "r").reshape(-1, record)[:, kinds:]
    return rows.reshape(-1, 3, 32, 32), of
