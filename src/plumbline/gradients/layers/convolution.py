"""Convolutions in one, two and three dimensions, plain and transposed, with groups.

Seen from one record, a convolution's weight gradient is the weight gradient of one group of a
*grouped* convolution whose batch is folded into the channels. So the library's own fused kernel
gives all the per-record gradients of a chunk at about the price of the summed one ("grouped"). For
few channels, and for small images with many channels, a product with unfolded inputs ("unfold") or
with inputs shifted along the last axis only, read three times ("shift"), can be faster: they are
measured. Padding modes other than zeros are applied by the module before the function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.errors import BatchDimensionError
from plumbline.gradients.kernels import KERNELS, Key, bucket
from plumbline.gradients.layers import handles
from plumbline.gradients.tape import Tape
from plumbline.gradients.terms import Dense, Term, rounding_slack, rows_like

_UNFOLD_BYTES = 1 << 22


@dataclass(frozen=True)
class Geometry:
    """A convolution's settings, one number per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    output_padding: tuple[int, ...]

    def run(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        """The convolution itself."""
        return torch.convolution(
            inputs, weight, bias, self.stride, self.padding, self.dilation,
            self.transposed, self.output_padding, groups,
        )  # fmt: skip

    def weight_gradient(self, back: Tensor, inputs: Tensor, weight: Tensor, groups: int) -> Tensor:
        """The summed weight gradient; ``weight`` is read for its shape only."""
        gradient: Tensor = torch.ops.aten.convolution_backward(
            back, inputs, weight, None, self.stride, self.padding, self.dilation,
            self.transposed, self.output_padding, groups, [False, True, False],
        )[1]  # fmt: skip
        return gradient


class Convolved(Term):
    """Per-record weight gradients from inputs ``[B, c, ...]`` and what flowed back ``[B, p, ...]``."""

    def __init__(
        self, inputs: Tensor, back: Tensor, shape: torch.Size, geometry: Geometry
    ) -> None:
        self.inputs, self.back = inputs, back
        self.records = inputs.shape[0]
        self.shape = shape
        self.geometry = geometry

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = self.inputs.new_empty(stop - start, *self.shape)
        inputs, back = self.inputs[start:stop], self.back[start:stop]
        key = ("dense", *self.key[:-2], bucket(stop - start), *self.key[-2:])
        return KERNELS.run(
            key,
            {
                name: lambda kernel=kernel: kernel(inputs, back, out)
                for name, kernel in self._dense_kernels().items()
            },
        )

    def weighted_sum(self, weights: Tensor) -> Tensor:
        back = self.back * rows_like(weights, self.back)
        shape = self.inputs.new_empty(1).expand(self.shape)
        return self.geometry.weight_gradient(back, self.inputs, shape, self.geometry.groups)

    def dot(self, direction: Tensor) -> Tensor:
        # <g_i, v> is what the loss gains when the weight moves along v: one forward convolution.
        moved = self.geometry.run(self.inputs, direction, None, self.geometry.groups)
        return (moved * self.back).flatten(1).sum(1)

    def select(self, index: Tensor) -> Convolved:
        return Convolved(self.inputs[index], self.back[index], self.shape, self.geometry)

    def scaled(self, coefficients: Tensor) -> Convolved:
        back = self.back * rows_like(coefficients, self.back)
        return Convolved(self.inputs, back, self.shape, self.geometry)

    def joined(self, others: Sequence[Term]) -> Dense:
        # Two images cannot be laid side by side without their borders mixing: add the gradients.
        return Dense(self._all()).joined(others)

    def pooled(self, index: Tensor, groups: int) -> Dense:
        return Dense(self._all()).pooled(index, groups)

    def slack(self) -> Tensor | None:
        kernel = self.shape[2:].numel()
        positions = self.back.shape[2:].numel()
        return rounding_slack(self.back, self.inputs, positions, overlap=kernel)

    def double(self) -> Convolved:
        return Convolved(self.inputs.double(), self.back.double(), self.shape, self.geometry)

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.back.nbytes

    @property
    def key(self) -> Key:
        return (
            "convolution", tuple(self.inputs.shape[1:]), tuple(self.shape), self.geometry.stride,
            self.geometry.padding, self.geometry.dilation, self.geometry.groups,
            self.geometry.transposed, bucket(self.records), self.dtype, self.device.type,
        )  # fmt: skip

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs.dtype

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def _dense_kernels(self) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
        kernels: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
            "grouped": lambda inputs, back, out: self._grouped(inputs, back, out, len(inputs)),
            "grouped-32": lambda inputs, back, out: self._grouped(inputs, back, out, 32),
        }
        if self.geometry.groups == 1 and not self.geometry.transposed:
            kernels["unfold"] = self._unfolded
            if len(self.shape) == 4 and set(self.geometry.stride) == {1}:
                kernels["shift"] = self._shifted
        return kernels

    def _grouped(self, inputs: Tensor, back: Tensor, out: Tensor, size: int) -> Tensor:
        for start in range(0, len(inputs), size):
            some, their = inputs[start : start + size], back[start : start + size]
            count = len(some)
            shape = some.new_empty(1).expand(count * self.shape[0], *self.shape[1:])
            gradient = self.geometry.weight_gradient(
                their.reshape(1, -1, *their.shape[2:]),
                some.reshape(1, -1, *some.shape[2:]),
                shape,
                count * self.geometry.groups,
            )
            if count == len(inputs):
                return gradient.view(count, *self.shape)
            out[start : start + size] = gradient.view(count, *self.shape)
        return out

    def _unfolded(self, inputs: Tensor, back: Tensor, out: Tensor) -> Tensor:
        records, kernel = len(inputs), self.shape[2:]
        rows = self.shape[1] * kernel.numel()
        positions = back.shape[2:].numel()
        size = max(1, _UNFOLD_BYTES // (rows * positions * inputs.element_size()))
        for start in range(0, records, size):
            some = inputs[start : start + size]
            windows = self._windows(some).reshape(len(some), rows, positions)
            their = back[start : start + size].reshape(len(some), -1, positions)
            torch.bmm(
                their, windows.transpose(1, 2), out=out[start : start + size].view(len(some), -1, rows)
            )
        return out

    def _windows(self, inputs: Tensor) -> Tensor:
        """Each output position's input window: a view ``[n, c, *kernel, *positions]``."""
        geometry, kernel = self.geometry, self.shape[2:]
        pads = [pad for size in reversed(geometry.padding) for pad in (size, size)]
        padded = F.pad(inputs, pads)
        positions = self.back.shape[2:]
        strides = padded.stride()
        spatial = strides[2:]
        return padded.as_strided(
            (*padded.shape[:2], *kernel, *positions),
            (
                *strides[:2],
                *(step * gap for step, gap in zip(spatial, geometry.dilation, strict=True)),
                *(step * hop for step, hop in zip(spatial, geometry.stride, strict=True)),
            ),
        )

    def _shifted(self, inputs: Tensor, back: Tensor, out: Tensor) -> Tensor:
        (top, side), (down, across) = self.geometry.padding, self.geometry.dilation
        channels, (kernel_rows, kernel_columns) = self.shape[1], self.shape[2:]
        height, width = back.shape[2:]
        tall = height + (kernel_rows - 1) * down
        size = max(1, _UNFOLD_BYTES // (kernel_columns * channels * tall * width * 4))
        # Copies shifted along the last axis; shifts along the other are only an offset in them.
        buffer = inputs.new_empty(min(size, len(inputs)), kernel_columns, channels, tall, width)
        for start in range(0, len(inputs), size):
            some = F.pad(inputs[start : start + size], (side, side, top, top))
            count = len(some)
            for column in range(kernel_columns):
                at = column * across
                buffer[:count, column] = some[:, :, :tall, at : at + width]
            columns = buffer[:count].view(count, kernel_columns * channels, tall * width)
            their = back[start : start + size].reshape(count, -1, height * width)
            for row in range(kernel_rows):
                at = row * down * width
                part = torch.bmm(their, columns[:, :, at : at + height * width].transpose(1, 2))
                part = part.view(count, -1, kernel_columns, channels)
                out[start : start + size, :, :, row] = part.transpose(2, 3)
        return out


def _handler(spatial: int, transposed: bool) -> Callable[..., Tensor | None]:
    def convolution(
        tape: Tape,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *rest: Any,
        **named: Any,
    ) -> Tensor | None:
        names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        given = {**dict(zip(names, rest, strict=False)), **named}
        kernel = weight.shape[2:]
        dilation = _each(given.get("dilation", 1), spatial)
        if isinstance(padding, str):
            if padding == "same":
                input = _pad_same(input, kernel, dilation)
            padding = 0
        geometry = Geometry(
            stride=_each(stride, spatial),
            padding=_each(padding, spatial),
            dilation=dilation,
            groups=int(given.get("groups", 1)),
            transposed=transposed,
            output_padding=_each(given.get("output_padding", 0), spatial),
        )
        return _convolve(tape, input, weight, bias, geometry)

    return convolution


def _convolve(
    tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor | None:
    known = tape.weights(weight, bias)
    if known is None or tape.weight(inputs) is not None:
        return None
    if inputs.dim() != weight.dim():
        raise BatchDimensionError(
            f"The convolution with the parameter '{known[0].name}' got an input of shape "
            f"{tuple(inputs.shape)} without a batch dimension. Give it [records, channels, ...]."
        )
    if tape.layout(inputs, known[0], leading=1) is None:
        return None
    w, b = tape.weight(weight), tape.weight(bias)
    weight_value = w.value if w else weight
    bias_value = b.value if b else bias
    if w is not None and w.offset is not None:
        own = w.offset.moved(weight_value)
        folded = inputs.reshape(1, -1, *inputs.shape[2:]).to(own.dtype)
        output = geometry.run(folded, own.flatten(0, 1), None, len(inputs) * geometry.groups)
        output = output.view(len(inputs), -1, *output.shape[2:])
        if bias_value is not None:
            output = output + bias_value.view(-1, *(1,) * len(weight.shape[2:])).to(output.dtype)
    else:
        output = geometry.run(inputs, weight_value, bias_value, geometry.groups)
    if b is not None and b.offset is not None:
        shift = b.offset.dense()
        output = output + shift.view(*shift.shape, *(1,) * len(weight.shape[2:])).to(output.dtype)

    def terms(gradient: Tensor) -> None:
        back = gradient.to(weight_value.dtype)
        if w is not None:
            into = inputs.detach().to(weight_value.dtype)
            w.add(Convolved(into, back, weight_value.shape, geometry))
        if b is not None:
            b.add(Dense(back.flatten(2).sum(2)))

    return tape.watch(output, terms, reads=inputs)


def _pad_same(inputs: Tensor, kernel: torch.Size, dilation: tuple[int, ...]) -> Tensor:
    pads: list[int] = []
    for size, gap in reversed(list(zip(kernel, dilation, strict=True))):
        total = gap * (size - 1)
        pads += [total // 2, total - total // 2]
    return F.pad(inputs, pads)


def _each(value: Any, spatial: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * spatial
    values = tuple(value)
    return values * spatial if len(values) == 1 else values


handles(torch.conv1d)(_handler(1, transposed=False))
handles(torch.conv2d)(_handler(2, transposed=False))
handles(torch.conv3d)(_handler(3, transposed=False))
handles(torch.conv_transpose1d)(_handler(1, transposed=True))
handles(torch.conv_transpose2d)(_handler(2, transposed=True))
handles(torch.conv_transpose3d)(_handler(3, transposed=True))
