"""SVHN, cropped digits: from the published train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from plumbline.data.base import Splits, dataset
from plumbline.data.files import DataError, File, locate, md5_of
from plumbline.data.images import Folder, Mapped, Pixels, labels, splits

DIGITS = tuple("0123456789")


def _file(name: str, md5: str, size: int) -> File:
    return File(f"svhn/{name}", md5, size, f"http://ufldl.stanford.edu/housenumbers/{name}")


SVHN = (
    _file("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
    _file("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
)


@dataset("svhn", SVHN)
def svhn(*, folder: Folder = None, normalise: bool = False, verify: bool = True) -> Splits:
    """SVHN: 73,257 and 26,032 images ``[3, 32, 32]`` of ten digits, which are the groups too.

    The label is the digit (the files have 10 for a zero). The 531,131 further images of the data
    set ("extra") are not part of the standard split and are not read.

    Args:
        folder: The data folder.
        normalise: Whether to use the published means and standard deviations instead of pixels in
            [0, 1].
        verify: Whether to compare the files' checksums with the published ones.
    """
    train, test = (_read(path) for path in locate("svhn", SVHN, folder, verify=verify))
    statistics = Pixels((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
    return splits("svhn", train, test, DIGITS, statistics, normalise)


def _read(path: Path) -> tuple[Mapped, Tensor, Tensor]:
    from scipy.io import loadmat  # slow to import, and only needed here

    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a damaged file can fail in any way
        raise DataError(
            f"{path} ({path.stat().st_size:,} bytes, md5 checksum {md5_of(path)}) is not a MATLAB "
            f"file that can be read: {error}. It is truncated, damaged, or another file. Delete it "
            "and get it again."
        ) from error
    found = {key: content[key].shape for key in ("X", "y") if key in content}
    records = found.get("y", (0,))[0]
    if found.get("X") != (32, 32, 3, records) or content["X"].dtype != "uint8":
        raise DataError(
            f"{path} has {found or 'neither X nor y'} where X of 32 x 32 x 3 x n bytes and y of n "
            "labels are expected: it is another file."
        )
    # In MATLAB's order the bytes of an image are adjacent, so nothing is copied here.
    images = content["X"].transpose(3, 2, 0, 1)
    y = labels(content["y"].reshape(-1) % 10, 10, path)
    return Mapped([images]), y, y
