"""Random views of images: shifts with reflection and horizontal flips, for self-augmentation (De
et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification").

Every row draws from its own stream (``Draws``), so a record's view depends on the record alone: the
other records of a batch, and its chunking, do not change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from plumbline.checks import is_row_by_row
from plumbline.record_random import Draws


class Augmentation(Protocol):
    """A random view of each row.

    Takes images ``[R, C, H, W]`` of any dtype, R possibly 0, and a stream for each row. Returns a
    new tensor ``[R, C, H', W']`` of the same dtype; the images are unchanged, the streams advance.
    A class that sets ``row_by_row`` to True promises to make each view from that row and its stream
    alone, and is given a whole batch at once; others are given one record at a time.
    """

    def __call__(self, images: Tensor, draws: Draws, /) -> Tensor: ...


@dataclass(frozen=True)
class Shift:
    """Shifts each row by up to ``pixels`` up or down and left or right, ``[R, C, H, W]`` to the
    same shape; the image's reflection moves in at an edge (the edge itself is not repeated).

    All ``(2 * pixels + 1) ** 2`` shifts are equally likely.
    """

    pixels: int = 4

    row_by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.pixels) is not int or self.pixels < 0:
            raise ValueError(f"pixels is {self.pixels!r}; it must be a whole number, at least 0")

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        height, width = _sides(images, draws)
        if self.pixels >= min(height, width):
            raise ValueError(
                f"pixels is {self.pixels}, but the images are {height} x {width} (H x W): a "
                "reflection reaches at most one pixel less than the shorter side. Give fewer "
                "pixels or larger images."
            )
        offsets = draws.integers(2 * self.pixels + 1, 2).to(images.device) - self.pixels
        return _taken(
            images,
            _reflected(_window(offsets[:, 0], height), height),
            _reflected(_window(offsets[:, 1], width), width),
        )


@dataclass(frozen=True)
class Flip:
    """Mirrors each row left to right with the given probability, ``[R, C, H, W]`` to the same."""

    probability: float = 0.5

    row_by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        value = self.probability
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 <= value <= 1):
            raise ValueError(
                f"probability is {value!r}; it must be a number in [0, 1], 0.5 for every other row"
            )

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        height, width = _sides(images, draws)
        flipped = (draws.uniform() < self.probability).to(images.device)
        start = torch.zeros_like(flipped, dtype=torch.int64)
        columns = _window(start, width)
        return _taken(
            images,
            _window(start, height),
            torch.where(flipped[:, None], width - 1 - columns, columns),
        )


@dataclass(frozen=True, init=False)
class Chain:
    """One augmentation after the other, in the order given, each with its own draws.

    Without parts it copies the images.
    """

    parts: tuple[Augmentation, ...]

    def __init__(self, *parts: Augmentation) -> None:
        for part in parts:
            # A class is callable too, and would fail only at the first batch.
            if isinstance(part, type) or not callable(part):
                raise ValueError(
                    f"Chain was given {part!r}; its parts are augmentations, one argument each, as "
                    "in Chain(Flip(), Shift(4))"
                )
        object.__setattr__(self, "parts", parts)  # frozen

    @property
    def row_by_row(self) -> bool:
        """Whether all of its parts make each view from that row alone."""
        return all(is_row_by_row(part) for part in self.parts)

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        _sides(images, draws)
        if not self.parts:
            return images.clone()
        for part in self.parts:
            images = part(images, draws)
        return images


def _window(start: Tensor, size: int) -> Tensor:
    """The ``size`` positions from each start ``[R]``, ``[R, size]``."""
    return start[:, None] + torch.arange(size, device=start.device)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Maps positions up to ``size - 1`` beyond either edge to the ones inside that they mirror."""
    last = size - 1
    return last - (last - places.abs()).abs()


def _taken(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels of each row's own image rows ``[R, h]`` and columns ``[R, w]``, ``[R, C, h, w]``.

    One gather with the same index for all channels: faster than indexing a padded copy, and it
    works for dtypes that torch cannot pad by reflection (uint8).
    """
    places = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = places.flatten(1)[:, None, :].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view(*images.shape[:2], *places.shape[1:])


def _sides(images: Tensor, draws: Draws) -> tuple[int, int]:
    """H and W, after checking that there is one stream for each row."""
    if images.ndim != 4:
        raise ValueError(
            f"the images have shape {tuple(images.shape)}; augmentations work on [R, C, H, W]. "
            "Add the missing dimension: image[None] for one image, images[:, None] for grey ones."
        )
    if len(draws) != len(images):
        raise ValueError(
            f"there are {len(images)} images and draws for {len(draws)} rows; there must be one "
            "stream for each image. For K views of each record give images.repeat_interleave(K, 0) "
            "and draws.repeat(K)."
        )
    return images.shape[2], images.shape[3]
