"""Convolutions in one, two and three dimensions, plain and transposed, with groups.

On the processor, a compiled loop computes each record's weight gradient together with its norm
("compiled", ``convolution_loops.py``). For what it does not cover: for one record, a convolution's
weight gradient is the weight gradient of one group of a *grouped* convolution whose batch is folded
into the channels, so that the library's own kernel computes all of them ("grouped"); or it is a
product with unfolded inputs ("unfold"). The fastest is measured. Padding modes other than zeros are
applied by the module before the function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.kernels import KERNELS, Key, bucket
from plumbline.gradients.layers import handles
from plumbline.gradients.lowering import by_record
from plumbline.gradients.outer import Outer
from plumbline.gradients.rounding import RowSquares, product_slack, square_rows
from plumbline.gradients.summation import ranges
from plumbline.gradients.tape import Tape
from plumbline.gradients.terms import Dense, Term, rows_like

_UNFOLD_BYTES = 1 << 22
_WORTH = 1 << 22
"""Multiplications from which on a compiled loop pays."""

_FEW = 64
"""Positions below which windows that lie side by side are taken for a linear layer's inputs."""

_NARROW = 32
"""Window size below which a first layer's forward pass may be a product instead."""


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

    @property
    def unfolds(self) -> bool:
        """Whether the convolution can be written as a product with unfolded inputs."""
        return self.groups == 1 and not self.transposed

    def positions(self, inputs: Tensor, kernel: torch.Size) -> torch.Size:
        """The spatial shape of the output, for a convolution that unfolds."""
        return torch.Size(
            (size + 2 * pad - gap * (span - 1) - 1) // hop + 1
            for size, pad, gap, span, hop in zip(
                inputs.shape[2:], self.padding, self.dilation, kernel, self.stride, strict=True
            )
        )

    def windows(self, inputs: Tensor, kernel: torch.Size, positions: torch.Size) -> Tensor:
        """Each output position's input window, ``[n, c * kernel, positions]``."""
        pads = [pad for size in reversed(self.padding) for pad in (size, size)]
        padded = F.pad(inputs, pads) if any(pads) else inputs
        batch, channel, *spatial = padded.stride()
        gaps = (step * gap for step, gap in zip(spatial, self.dilation, strict=True))
        hops = (step * hop for step, hop in zip(spatial, self.stride, strict=True))
        view = padded.as_strided(
            (*padded.shape[:2], *kernel, *positions), (batch, channel, *gaps, *hops)
        )
        return view.reshape(len(inputs), -1, positions.numel())

    def has_patches(self, kernel: torch.Size) -> bool:
        """Whether windows lie side by side: a linear layer of patches."""
        return self.unfolds and self.stride == tuple(kernel) and not any(self.padding)

    def patches(self, inputs: Tensor, back: Tensor, shape: torch.Size) -> Outer:
        """The weight gradients of such a convolution."""
        windows = self.windows(inputs, shape[2:], back.shape[2:])
        lefts, rights = back.flatten(2).transpose(1, 2), windows.transpose(1, 2)
        return Outer(lefts.contiguous(), rights.contiguous(), shape=shape)

    def weight_gradient(self, back: Tensor, inputs: Tensor, weight: Tensor, groups: int) -> Tensor:
        """The summed weight gradient; only the shape of ``weight`` is used."""
        gradient: Tensor = torch.ops.aten.convolution_backward(
            back, inputs, weight, None, self.stride, self.padding, self.dilation,
            self.transposed, self.output_padding, groups, [False, True, False],
        )[1]  # fmt: skip
        return gradient


class Convolved(Term):
    """Weight gradients from inputs ``[B, c, ...]`` and output gradients ``[B, p, ...]``."""

    def __init__(
        self,
        inputs: Tensor,
        back: Tensor,
        shape: torch.Size,
        geometry: Geometry,
        back_squares: RowSquares | None = None,
    ) -> None:
        self.inputs, self.back = inputs, back
        self._back_squares = back_squares or RowSquares(back)
        self._input_squares = RowSquares(inputs)
        self.records = inputs.shape[0]
        self.shape = shape
        self.geometry = geometry

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        return self._gradients(start, stop, out)[0]

    def with_squares(
        self, start: int, stop: int, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        rows, squares = self._gradients(start, stop, out)
        return rows, square_rows(rows) if squares is None else squares

    def kept(self) -> tuple[Tensor, Tensor]:
        return self.with_squares(0, self.records) if self._compiles else super().kept()

    def dot(self, direction: Tensor) -> Tensor:
        # <g_i, v> is the change in the loss when the weight moves along v: a forward convolution.
        moved = self.geometry.run(self.inputs, direction, None, self.geometry.groups)
        return (moved * self.back).flatten(1).sum(1)

    def select(self, index: Tensor) -> Convolved:
        return Convolved(self.inputs[index], self.back[index], self.shape, self.geometry)

    def scaled(self, coefficients: Tensor) -> Convolved:
        back = self.back * rows_like(coefficients, self.back)
        return Convolved(self.inputs, back, self.shape, self.geometry)

    def joined(self, others: Sequence[Term]) -> Dense:
        # Two images side by side would mix at their borders: add the gradients instead.
        return Dense(self.all()).joined(others)

    def pooled(self, index: Tensor, groups: int) -> Dense:
        return Dense(self.all()).pooled(index, groups)

    @property
    def positions(self) -> int:
        return self.back.shape[2:].numel()

    def slack(self) -> Tensor | None:
        overlap = self.shape[2:].numel()
        return product_slack(self._back_squares(), self._input_squares(), self.dtype, overlap)

    def sizes(self) -> Tensor:
        overlap = self.shape[2:].numel()
        return (self._back_squares() * self._input_squares() * overlap).sqrt()

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

    def _gradients(self, start: int, stop: int, out: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The dense gradients, and their squared norms if they come with them."""
        kernels: dict[str, Callable[[int, int, Tensor | None], tuple[Tensor, Tensor | None]]] = {}
        if self._compiles:
            kernels["compiled"] = self._compiled
        kernels["grouped"] = self._grouped
        if self.geometry.unfolds:
            kernels["unfold"] = self._unfolded
        key = ("dense", *self.key[:-2], bucket(stop - start), *self.key[-2:])
        return KERNELS.run(
            key, {name: partial(kernel, start, stop, out) for name, kernel in kernels.items()}
        )

    @property
    def _compiles(self) -> bool:
        """Whether there is a compiled loop for this convolution, and it pays."""
        return (
            self.geometry.unfolds
            and self.dtype == torch.float32
            and self.device.type == "cpu"
            and len(self.shape) <= 4
            and set(self.geometry.dilation) == {1}
            and self.back.numel() * self.shape[1:].numel() >= _WORTH
        )

    def _compiled(self, start: int, stop: int, out: Tensor | None) -> tuple[Tensor, Tensor]:
        from plumbline.gradients.convolution_loops import record_gradients  # numba: takes time

        inputs, back, geometry = self.inputs[start:stop], self.back[start:stop], self.geometry
        flat = len(self.shape) == 3  # images of one line
        line = (1,) if flat else ()
        values, squares = record_gradients(
            inputs.unsqueeze(2) if flat else inputs,
            back.unsqueeze(2) if flat else back,
            (*line, *self.shape[2:]), (*line, *geometry.stride), (0,) * flat + geometry.padding,
        )  # fmt: skip
        if (start, stop) == (0, self.records):
            self._input_squares.known(squares[1])
            self._back_squares.known(squares[2])
        values = values.squeeze(3) if flat else values
        return values if out is None else out.copy_(values), squares[0]

    def _grouped(self, start: int, stop: int, out: Tensor | None) -> tuple[Tensor, None]:
        inputs, back, count = self.inputs[start:stop], self.back[start:stop], stop - start
        shape = inputs.new_empty(1).expand(count * self.shape[0], *self.shape[1:])
        gradient = self.geometry.weight_gradient(
            back.reshape(1, -1, *back.shape[2:]),
            inputs.reshape(1, -1, *inputs.shape[2:]),
            shape,
            count * self.geometry.groups,
        ).view(count, *self.shape)
        return gradient if out is None else out.copy_(gradient), None

    def _unfolded(self, start: int, stop: int, out: Tensor | None) -> tuple[Tensor, None]:
        if out is None:
            out = self.inputs.new_empty(stop - start, *self.shape)
        inputs, back = self.inputs[start:stop], self.back[start:stop]
        kernel, positions = self.shape[2:], back.shape[2:]
        rows, count = self.shape[1] * kernel.numel(), positions.numel()
        size = max(1, _UNFOLD_BYTES // (rows * count * inputs.element_size()))
        for first, last in ranges(0, len(inputs), size):
            some = self.geometry.windows(inputs[first:last], kernel, positions)
            their = back[first:last].reshape(len(some), -1, count)
            into = out[first:last].view(len(some), -1, rows)
            torch.bmm(their, some.transpose(1, 2), out=into)
        return out, None


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
        if not tape.has_records(input) or tape.has_records(weight, bias):
            return None
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
    if known is None:
        return None
    if inputs.dim() > weight.dim():  # [B, N, C, ...]: the model's own batch, usually of one
        several = inputs.shape[1]
        if several != 1 and known[0].offset is not None:
            return None
        output = _convolve_rows(tape, inputs.flatten(0, 1), weight, bias, geometry)
        return by_record(output, tape.records)
    return _convolve_rows(tape, inputs, weight, bias, geometry)


def _convolve_rows(
    tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    """The convolution of images ``[B * N, C, ...]``, N of each record."""
    w, b = tape.weight(weight), tape.weight(bias)
    weight_value = w.value if w else weight
    bias_value = b.value if b else bias
    if w is not None and w.offset is not None:
        output = _outputs(tape, inputs, w.offset.moved(weight_value), None, geometry)
        if bias_value is not None:
            output = output + bias_value.view(-1, *(1,) * len(weight.shape[2:])).to(output.dtype)
    else:
        output = _outputs(tape, inputs, weight_value, bias_value, geometry)
    if b is not None and b.offset is not None:
        shift = b.offset.dense()
        output = output + shift.view(*shift.shape, *(1,) * len(weight.shape[2:])).to(output.dtype)

    def terms(gradient: Tensor) -> None:
        back = gradient.to(weight_value.dtype)
        squares = RowSquares(back)
        into = inputs.detach().to(weight_value.dtype)
        w_term: Term = Convolved(into, back, weight_value.shape, geometry, squares)
        if geometry.has_patches(weight_value.shape[2:]) and w_term.positions < _FEW:
            w_term = geometry.patches(into, back, weight_value.shape)
        b_term: Term = Dense.summed(back.flatten(2), (2,), squares)
        if len(into) != tape.records:  # several images of one record
            owner = torch.arange(tape.records, device=into.device)
            owner = owner.repeat_interleave(len(into) // max(1, tape.records))
            w_term = w_term.pooled(owner, tape.records)
            b_term = b_term.pooled(owner, tape.records)
        if w is not None:
            w.add(w_term)
        if b is not None:
            b.add(b_term)

    return tape.watch(output, terms, reads=inputs)


def _outputs(
    tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    """The convolution with one weight for all records, or one for each (``[B, p, c, ...]``)."""
    own = weight.dim() > inputs.dim()

    def native() -> Tensor:
        if not own:
            return geometry.run(inputs, weight, bias, geometry.groups)
        folded = inputs.reshape(1, -1, *inputs.shape[2:]).to(weight.dtype)
        output = geometry.run(folded, weight.flatten(0, 1), None, len(inputs) * geometry.groups)
        return output.view(len(inputs), -1, *output.shape[2:])

    narrow = weight.shape[-inputs.dim() + 1 :].numel() <= _NARROW
    if not (geometry.unfolds and narrow) or inputs.requires_grad or tape.checked:
        return native()

    def unfold() -> Tensor:
        kernel = weight.shape[-inputs.dim() + 2 :]
        positions = geometry.positions(inputs, kernel)
        rows = weight.flatten(-inputs.dim() + 1).expand(len(inputs), -1, -1)
        windows = geometry.windows(inputs, kernel, positions)
        output = windows.new_empty(len(inputs), rows.shape[1], *positions)
        flat = output.view(len(inputs), rows.shape[1], -1)  # the tape would copy a view
        if bias is None:
            torch.bmm(rows, windows, out=flat)
        else:
            torch.baddbmm(bias[None, :, None], rows, windows, out=flat)
        return output

    # A first layer with few channels: the library's kernels are made for many.
    key = ("forward", tuple(inputs.shape[1:]), tuple(weight.shape[-inputs.dim() :]), geometry, own,
           bucket(len(inputs)), weight.dtype, weight.device.type)  # fmt: skip
    return KERNELS.run(key, {"native": native, "unfold": unfold})


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
