"""Each record's weight gradient of a convolution, and its norm, in one compiled pass.

The gradient of one record is a product of two matrices: its output gradients, and windows of its
input. With the channels last in memory, the pixels in one line of a window are neighbours, so
windows are read where they are and never copied. A few channels of the output times a few vectors
of a line are summed over many positions in vector registers (``vector_loops.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.compiled import compiled, in_threads
from plumbline.gradients.vector_loops import COLUMNS, LANES, ROWS, TURNED, add_tile, turn

Floats = NDArray[np.float32]

_BLOCK = 32  # channels of the output whose sums are in the cache together
_POSITIONS = 64  # whose inputs and gradients are


def record_gradients(
    inputs: Tensor,
    back: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """The weight gradients of all records, ``[B, p, c, *kernel]``, and three squared norms of each.

    Args:
        inputs: ``[B, c, H, W]``, float32 on the processor.
        back: Output gradients ``[B, p, h, w]``.
        kernel: The window's height and width.
        stride: The distance between windows, down and across.
        padding: Lines of zeros above and below, and zeros on either side.

    Returns:
        The gradients, with the channels last in memory, and ``[3, B]`` float64: the squared norms
        of the gradients, of the inputs and of the output gradients.
    """
    records, channels = inputs.shape[:2]
    values = inputs.new_empty(records, back.shape[1], kernel[0], kernel[1] * channels)
    squares = torch.empty(3, records, dtype=torch.float64)
    arrays = [one.numpy() for one in (inputs.contiguous(), back.contiguous(), values, squares)]
    given: tuple[Any, ...] = (*arrays, *kernel, *stride, *padding)
    in_threads(lambda *part: _gradients(*given, *part), records, 1)
    channels_last = values.view(records, back.shape[1], *kernel, channels)
    return channels_last.permute(0, 1, 4, 2, 3), squares


@compiled(reorder=True)
def _square(numbers: Floats) -> float:
    total = 0.0
    for j in range(len(numbers)):
        total += np.float64(numbers[j]) * np.float64(numbers[j])
    return total


@compiled()
def _channels_last(image: Floats, target: Floats, width: int, top: int, side: int) -> None:
    """``image [c, H, W]`` into lines of ``width`` pixels of c numbers, inside of the padding."""
    channels, height, own_width = image.shape
    source = image.reshape(-1)
    whole, whole_width = channels - channels % TURNED, own_width - own_width % TURNED
    for y in range(height):
        line = (y + top) * width + side
        for x in range(0, whole_width, TURNED):
            for c in range(0, whole, TURNED):
                turn(
                    source, (c * height + y) * own_width + x, height * own_width,
                    target, (line + x) * channels + c, channels,
                )  # fmt: skip
        for c in range(channels):
            for x in range(0 if c >= whole else whole_width, own_width):
                target[(line + x) * channels + c] = image[c, y, x]


@compiled()
def _add_block(
    sums: Floats, left: Floats, image: Floats, first: int, last: int, numbers: int, kernel: int,
    height: int, width: int, step: int, line: int, image_line: int,
) -> None:  # fmt: skip
    """Puts rows ``first .. last - 1`` of a gradient into ``sums [kernel, _BLOCK, columns]``.

    ``left`` has the output gradients ``[p, height, width]``, and ``image`` the input with its
    channels last. Windows are ``step`` numbers of the image apart across and ``line`` down; each
    has ``kernel`` lines of ``numbers`` numbers, ``image_line`` apart.
    """
    room = sums.shape[2]
    flat = sums.reshape(-1)
    flat[:] = 0
    lines = max(4, _POSITIONS // width)
    for y in range(0, height, lines):
        some = min(lines, height - y)
        for column in range(0, numbers, COLUMNS):
            wide = numbers - column > 2 * LANES
            for k in range(kernel):
                source = y * line + k * image_line + column
                for row in range(first, last, ROWS):
                    at = (k * _BLOCK + row - first) * room + column
                    own = (row * height + y) * width
                    if wide:
                        add_tile(
                            flat, at, room, left, own, height * width, width, 1,
                            image, source, line, step, some, width, 3,
                        )  # fmt: skip
                    else:
                        add_tile(
                            flat, at, room, left, own, height * width, width, 1,
                            image, source, line, step, some, width, 2,
                        )  # fmt: skip


@compiled(
    "void(float32[:, :, :, ::1], float32[:, :, :, ::1], float32[:, :, :, ::1], float64[:, ::1], "
    "int64, int64, int64, int64, int64, int64, int64, int64)"
)
def _gradients(
    inputs: Floats, back: Floats, values: Floats, squares: NDArray[np.float64],
    kernel: int, kernel_width: int, stride: int, stride_x: int, top: int, side: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    """The gradients of records ``start .. stop - 1``, ``[p, kernel, kernel_width * c]`` each."""
    _, channels, in_height, in_width = inputs.shape
    _, rows, height, width = back.shape
    numbers = kernel_width * channels
    pixels = in_width + 2 * side
    image_line = pixels * channels
    image = np.zeros((in_height + 2 * top) * image_line + COLUMNS, np.float32)
    more_rows = np.zeros((rows + ROWS) * height * width if rows % ROWS else 0, np.float32)
    columns = (numbers + COLUMNS - 1) // COLUMNS * COLUMNS  # tiles go beyond the last number
    sums = np.empty((kernel, _BLOCK, columns), np.float32)
    for i in range(start, stop):
        _channels_last(inputs[i], image, pixels, top, side)
        left = back[i].reshape(-1)
        if rows % ROWS:  # and beyond the last row
            more_rows[: len(left)] = left
            left = more_rows
        total = 0.0
        for first in range(0, rows, _BLOCK):
            last = min(first + _BLOCK, rows)
            _add_block(
                sums, left, image, first, last, numbers, kernel, height, width,
                stride_x * channels, stride * image_line, image_line,
            )  # fmt: skip
            for row in range(first, last):
                for k in range(kernel):
                    found, kept = sums[k, row - first], values[i, row, k]
                    for j in range(numbers):
                        kept[j] = found[j]
                    total += _square(kept)
        squares[0, i], squares[1, i], squares[2, i] = total, _square(image), _square(left)
