"""Your own images: a folder with one folder of images for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from plumbline.data.base import Constant, Split, Splits, dataset
from plumbline.data.decoding import decode
from plumbline.data.encoding import codes, split
from plumbline.data.files import DataError
from plumbline.data.images import RANGE, Pixels

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))
Sensitive = Mapping[str, str] | Callable[[str], str]


@dataset("image-folder")
def image_folder(
    path: str | os.PathLike[str],
    *,
    size: int,
    classes: Sequence[str] | None = None,
    sensitive: Sensitive | None = None,
    groups: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    grey: bool = False,
) -> Splits:
    """Images ``[3, size, size]`` (grey: ``[1, size, size]``), pixels in [0, 1].

    They are decoded into memory, as bytes: no copy of your data is left on disk. An image of
    another size is cropped to its central square and scaled. Files without an image suffix, and
    those that begin with a dot, are left out.

    Args:
        path: The folder, as in ``path/cat/1.png``; images may be in subfolders of a class's folder.
        size: The height and width that the model sees.
        classes: The classes' names, in the order of y. By default the folders' names, in
            alphabetical order, which the privacy statement then lists: the existence of a class
            was learnt from the records.
        sensitive: The group of each image, by its path below ``path`` with forward slashes, such
            as ``cat/1.png``: a mapping or a function.
        groups: The groups' names, in the order of ``sensitive_features``; by default the names
            that occur, listed like the classes.
        test_fraction: The share of the images that are for testing.
        seed: The seed of the division into parts.
        grey: One channel instead of three.

    Raises:
        DataError: Naming the image that cannot be decoded, or has no group.
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. Give one that has a folder for each class.")
    if size < 1:
        raise ValueError(f"size is {size}; it must be at least 1.")
    found = sorted(one.name for one in root.iterdir() if one.is_dir() and one.name[0] != ".")
    constants = [RANGE]
    if classes is None:
        classes = found
        constants.append(Constant("the classes' names (the folders')", "training"))
    images, names = _images(root, found, classes)

    of = None
    if sensitive is not None:
        of = [_group(image.relative_to(root).as_posix(), sensitive) for image in images]
        if groups is None:
            groups = sorted(set(of))
            constants.append(Constant("the groups' names (those that occur)", "training"))
    elif groups is not None:
        raise ValueError("groups names the values of sensitive, which is not given. Give both.")

    pixels = np.empty((len(images), 1 if grey else 3, size, size), np.uint8)
    for row, image in zip(pixels, images, strict=True):
        row[...] = decode(image, str(image), size, "L" if grey else "RGB")
    whole = Split(
        torch.from_numpy(pixels),
        codes(names, classes, "class"),
        None if of is None or groups is None else codes(of, groups, "sensitive"),
        Pixels(),
    )
    train, test = split(len(whole), test_fraction, torch.Generator().manual_seed(seed))
    share = f"{1 - test_fraction:.0%} / {test_fraction:.0%}"
    constants.append(Constant(f"the division into parts ({share} by seed {seed})", "public"))
    return Splits(
        name=root.name,
        train=whole.select(train),
        test=whole.select(test),
        classes=tuple(classes),
        groups=tuple(groups or ()),
        constants=tuple(constants),
    )


def _images(
    root: Path, found: Sequence[str], classes: Sequence[str]
) -> tuple[list[Path], list[str]]:
    """The images in a fixed order, and the class of each."""
    if strange := sorted(set(found) - set(classes)):
        raise DataError(
            f"{root} has the folders {strange}, which are none of the classes {list(classes)}. "
            "Remove them, or name them among the classes."
        )
    images, names = [], []
    for name in found:
        for image in sorted((root / name).rglob("*")):
            if image.suffix.lower() in SUFFIXES and image.name[0] != "." and image.is_file():
                images.append(image)
                names.append(name)
    if not images:
        raise DataError(
            f"{root} has no images in folders, as in {root / 'cat' / '1.png'}. An image's name "
            f"ends with one of {', '.join(sorted(SUFFIXES))}."
        )
    return images, names


def _group(name: str, sensitive: Sensitive) -> str:
    if callable(sensitive):
        return sensitive(name)
    if name not in sensitive:
        raise DataError(f"The image {name} has no group: sensitive has no such key. Add it.")
    return sensitive[name]
