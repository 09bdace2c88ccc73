"""What the image sets share: bytes that stay in their files, pixels in [0, 1], partial folders.

Images are stored as uint8, ``[n, C, H, W]``, a quarter of the size of floats. Where the file format
allows it they are mapped, so that only the records of a batch are ever read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plumbline.data.base import Constant, Split, Splits
from plumbline.data.files import DataError, File, data_folder, locate

Folder = str | os.PathLike[str] | None
RANGE = Constant("the range of a pixel (0 to 255, mapped to [0, 1])", "public")


Bytes = npt.NDArray[np.uint8]


class Mapped:
    """Images in several arrays, mapped from files or in memory, read when needed.

    It is indexed like a tensor's first dimension (by number, slice, mask or ``[R]`` numbers) and
    returns tensors; ``mapped[:]`` is everything, in memory.

    Args:
        blocks: ``[n_k, C, H, W]`` each, of one shape.
        order: ``[n]``, which rows of the concatenated blocks these are; by default all.
    """

    row_by_row = True

    def __init__(self, blocks: Sequence[Bytes], order: Tensor | None = None) -> None:
        self._blocks = tuple(blocks)
        self._ends = np.cumsum([len(block) for block in blocks])
        self._order = torch.arange(int(self._ends[-1])) if order is None else order

    def __len__(self) -> int:
        return len(self._order)

    @property
    def shape(self) -> torch.Size:
        """``[n, C, H, W]``."""
        return torch.Size((len(self), *self._blocks[0].shape[1:]))

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        chosen = self._order[index]
        rows = chosen.reshape(-1).numpy()
        # With numpy, which gathers bytes ten times as fast as torch.
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        block_of = np.searchsorted(self._ends, rows, side="right")
        for number, block in enumerate(self._blocks):
            here = np.flatnonzero(block_of == number)
            images[here] = block[rows[here] - (self._ends[number] - len(block))]
        return torch.from_numpy(images).reshape(*chosen.shape, *self.shape[1:])

    def select(self, index: Tensor) -> Mapped:
        """The images ``index`` (``[R]``), still in their files."""
        return Mapped(self._blocks, self._order[index])


@dataclass(frozen=True)
class Pixels:
    """From stored bytes to the model's input: floats in [0, 1], normalised if there are statistics.

    Attributes:
        mean: One per channel, of pixels in [0, 1]; empty for no normalisation.
        std: The same.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    row_by_row: ClassVar[bool] = True

    def __call__(self, rows: Tensor) -> Tensor:
        x = rows.to(torch.float32).div_(255)
        if not self.mean:
            return x
        mean, std = (torch.tensor(one)[:, None, None] for one in (self.mean, self.std))
        return x.sub_(mean).div_(std)


def splits(
    name: str,
    train: tuple[Tensor | Mapped, Tensor, Tensor],
    test: tuple[Tensor | Mapped, Tensor, Tensor],
    classes: tuple[str, ...],
    published: Pixels,
    normalise: bool,
    groups: tuple[str, ...] | None = None,
) -> Splits:
    """An image set of parts ``(x, y, sensitive_features)``; the groups are the classes by default.

    Normalising uses the mean and standard deviation that everyone uses for this data set. They are
    published, but were once computed from its training records, and the constant says so: truly
    private data has no such numbers.
    """
    constants = [RANGE]
    if normalise:
        constants.append(
            Constant(
                f"the pixels' mean {published.mean} and standard deviation {published.std}, as "
                f"published for {name} (by others, from its training part)",
                "public",
            )
        )
    prepare = published if normalise else Pixels()
    return Splits(
        name=name,
        train=Split(*train, prepare),
        test=Split(*test, prepare),
        classes=classes,
        groups=classes if groups is None else groups,
        constants=tuple(constants),
    )


def labels(values: npt.NDArray[np.generic], classes: int, path: Path) -> Tensor:
    """Labels ``[n]`` as int64, which must be in [0, classes)."""
    y = values.astype(np.int64)
    if len(y) and (y.min() < 0 or y.max() >= classes):
        raise DataError(
            f"{path} has labels outside of 0 to {classes - 1}: it is damaged, or another file. "
            "Delete it and get it again."
        )
    return torch.from_numpy(y)


def batch_files(
    name: str,
    train: Sequence[File],
    test: Sequence[File],
    folder: Folder,
    *,
    allow_partial: bool,
    verify: bool,
) -> tuple[list[Path], list[Path]]:
    """The files of a data set that comes in batches: all, or, if allowed, those that are there.

    Raises:
        DataError: Naming what is missing or damaged.
    """
    root = data_folder(folder)
    there = [[file for file in files if (root / file.path).is_file()] for files in (train, test)]
    found, wanted = len(there[0]) + len(there[1]), len(train) + len(test)
    if allow_partial and all(there):
        train, test = there
    try:
        paths = locate(name, [*train, *test], folder, verify=verify)
    except DataError as error:
        if found == wanted or allow_partial or not all(there):
            raise
        raise DataError(
            f"{error}\nTo load only the {found} of {wanted} files that are there, pass "
            "allow_partial=True."
        ) from None
    return paths[: len(train)], paths[len(train) :]
