"""MNIST, Fashion-MNIST and MNIST-8, each from the four IDX gz files it is published as.

IDX is a magic number (two zero bytes, 8 for unsigned bytes, the number of dimensions), the
dimensions as big-endian 32-bit integers, and the bytes.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from plumbline.data.base import Constant, Splits, dataset
from plumbline.data.files import DataError, File, locate, reading
from plumbline.data.images import Folder, Pixels, labels, splits

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
KEPT = 0.09  # of class 8, in MNIST-8

_BLOCK = 1 << 20
_RATIO = 1032  # the largest compression ratio of deflate

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _files(folder: str, url: str, published: tuple[tuple[str, int], ...]) -> tuple[File, ...]:
    return tuple(
        File(f"{folder}/{name}", md5, size, url + name)
        for name, (md5, size) in zip(_NAMES, published, strict=True)
    )


MNIST = _files(
    "mnist",
    _MNIST,
    (
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
)
FASHION_MNIST = _files(
    "fashion-mnist",
    _FASHION,
    (
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ),
)


@dataset("mnist", MNIST)
def mnist(*, folder: Folder = None, normalise: bool = False, verify: bool = True) -> Splits:
    """MNIST: 60,000 and 10,000 images ``[1, 28, 28]`` of ten digits, which are the groups too.

    Args:
        folder: The data folder.
        normalise: Whether to use the published mean and standard deviation (0.1307, 0.3081)
            instead of pixels in [0, 1].
        verify: Whether to compare the files' checksums with the published ones.
    """
    statistics = Pixels((0.1307,), (0.3081,))
    return _load("mnist", MNIST, DIGITS, statistics, folder, normalise, verify)


@dataset("fashion-mnist", FASHION_MNIST)
def fashion_mnist(*, folder: Folder = None, normalise: bool = False, verify: bool = True) -> Splits:
    """Fashion-MNIST: as MNIST, of ten kinds of clothes (published statistics 0.2860, 0.3530)."""
    statistics = Pixels((0.2860,), (0.3530,))
    return _load("fashion-mnist", FASHION_MNIST, CLOTHES, statistics, folder, normalise, verify)


@dataset("mnist-8", MNIST)
def mnist_8(
    *, seed: int = 0, folder: Folder = None, normalise: bool = False, verify: bool = True
) -> Splits:
    """Unbalanced MNIST: each 8 of the training part is kept with probability 0.09.

    About 54,700 training records, some 530 of them eights; the test part is MNIST's. The groups
    are the classes.

    Args:
        seed: The seed of the draws, one for each training record.
        folder: The data folder.
        normalise: As in ``mnist``.
        verify: As in ``mnist``.
    """
    whole = mnist(folder=folder, normalise=normalise, verify=verify)
    drawn = torch.rand(len(whole.train), generator=torch.Generator().manual_seed(seed))
    kept = (whole.train.y != 8) | (drawn < KEPT)
    rate = Constant(f"the rate at which eights are kept ({KEPT})", "public")
    return Splits(
        name="mnist-8",
        train=whole.train.select(kept.nonzero()[:, 0]),
        test=whole.test,
        classes=whole.classes,
        groups=whole.groups,
        constants=(*whole.constants, rate),
    )


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The bytes of an IDX gz file, in its own shape (``dimensions`` numbers).

    Raises:
        DataError: If it is not an IDX file, or shorter or longer than its header says.
    """
    with gzip.open(path) as stream:
        header = stream.read(4 + 4 * dimensions)
        magic = bytes((0, 0, 8, dimensions))
        if header[:4] != magic or len(header) < 4 + 4 * dimensions:
            raise DataError(
                f"{path} begins with the bytes {header[:4].hex(' ')} where {magic.hex(' ')} are "
                f"expected (IDX, unsigned bytes, {dimensions} dimensions): it is another file."
            )
        shape = tuple(int(one) for one in np.frombuffer(header, ">u4", offset=4))
        if math.prod(shape) > _RATIO * path.stat().st_size:
            raise DataError(
                f"{path} says that it has {' x '.join(map(str, shape))} bytes, more than its "
                f"{path.stat().st_size:,} can hold: it is damaged. Delete it and get it again."
            )
        values = np.empty(shape, np.uint8)
        found = 0
        view = values.reshape(-1).data
        # In blocks: gzip allocates whatever is requested a second time.
        while count := stream.readinto(view[found : found + _BLOCK]):
            found += count
        found += len(stream.read(1))
    if found != values.size:
        more = "more" if found > values.size else f"{found:,}"
        raise DataError(
            f"{path} says that it has {' x '.join(map(str, shape))} = {values.size:,} bytes, but "
            f"has {more}: it is damaged. Delete it and get it again."
        )
    return values


def _load(
    name: str,
    files: tuple[File, ...],
    classes: tuple[str, ...],
    published: Pixels,
    folder: Folder,
    normalise: bool,
    verify: bool,
) -> Splits:
    paths = locate(name, files, folder, verify=verify)
    parts = []
    for first in (0, 2):
        (images, targets), (image_file, target_file) = paths[first:][:2], files[first:][:2]
        with reading(image_file, images):
            x = torch.from_numpy(read_idx(images, 3))[:, None]
        with reading(target_file, targets):
            y = labels(read_idx(targets, 1), len(classes), targets)
        if len(x) != len(y):
            raise DataError(f"{images} has {len(x):,} images, but {targets} {len(y):,} labels.")
        parts.append((x, y, y))
    return splits(name, parts[0], parts[1], classes, published, normalise)
