"""The contents of tensors that must not change, compared by checksums at a bounded cost.

A write through ``.data`` (or through an array that shares the memory) leaves no mark on a tensor,
so only its contents can tell. Checksums are kept of blocks, and a check goes over as many blocks as
its limit allows, each time going on where the last one ended: everything if it is small, otherwise
a part whose place cannot be foreseen, since the first one is drawn at random. Tensors that change
in between anyway are compared in a window at a random place.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plumbline.gradients.attribute_walk import Path

_BLOCK, _WINDOW = 2**16, 2**12


class TensorContents:
    """Checksums of tensors.

    Args:
        generator: Decides where the first check starts; whoever knows it knows what is checked.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._blocks: list[_Block] = []
        self._next = 0

    def take(self, placed: list[tuple[Path, Tensor]], changed: set[int]) -> None:
        """Makes these the tensors that are kept.

        Args:
            placed: All of them, with their paths.
            changed: The ids of those whose checksums are to be taken anew.
        """
        kept: dict[int, list[_Block]] = {}
        for block in self._blocks:
            if id(block.tensor) not in changed:
                kept.setdefault(id(block.tensor), []).append(block)
        self._blocks = [
            block
            for path, tensor in placed
            for block in kept.get(id(tensor)) or _blocks(path, tensor)
        ]
        if self._blocks:
            drawn = torch.randint(len(self._blocks), (), generator=self._generator)
            self._next = int(drawn)

    def differing(self, limit: int | None = None) -> Path | None:
        """The path of a tensor that is not as it was, if one of those that are checked is not.

        Args:
            limit: About how many elements are checked; all by default.
        """
        checked = 0
        for _ in range(len(self._blocks)):
            if limit is not None and checked >= limit:
                break
            block = self._blocks[self._next]
            self._next = (self._next + 1) % len(self._blocks)
            checked += block.size
            if block.checksum() != block.taken:
                return block.path
        return None


class Window:
    """A few thousand elements at a random place of some tensors, now and later.

    Args:
        placed: The tensors with their paths.
        generator: Draws the place.
    """

    def __init__(self, placed: Sequence[tuple[Path, Tensor]], generator: torch.Generator) -> None:
        total = sum(tensor.numel() for _, tensor in placed)
        place = int(torch.randint(max(1, total), (), generator=generator))
        self._block: _Block | None = None
        for path, tensor in placed:
            if place < tensor.numel():
                size = min(_WINDOW, tensor.numel() - place)
                self._block = _Block(path, tensor, place, size)
                return
            place -= tensor.numel()

    def differing(self) -> Path | None:
        """The tensor's path, if it is not as it was."""
        block = self._block
        return None if block is None or block.checksum() == block.taken else block.path


@dataclass(eq=False)
class _Block:
    """A part of a tensor, in the order of its elements.

    Attributes:
        taken: Its checksum when it was taken.
    """

    path: Path
    tensor: Tensor
    start: int
    size: int
    shared: memoryview | None = None
    taken: int = 0

    def __post_init__(self) -> None:
        data = self.tensor.detach()
        if data.device.type == "cpu" and data.is_contiguous():
            self.shared = self._bytes().data  # the tensor's own memory
        self.taken = self.checksum()

    def checksum(self) -> int:
        return zlib.crc32(self._bytes().data if self.shared is None else self.shared)

    def _bytes(self) -> npt.NDArray[np.uint8]:
        flat = self.tensor.detach().reshape(-1)[self.start : self.start + self.size]
        return flat.cpu().view(torch.uint8).numpy()


def _blocks(path: Path, tensor: Tensor) -> Iterator[_Block]:
    total = tensor.numel()
    for start in range(0, total, _BLOCK):
        yield _Block(path, tensor, start, min(_BLOCK, total - start))
