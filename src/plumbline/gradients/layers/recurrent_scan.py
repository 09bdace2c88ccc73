"""All steps of a recurrent layer as one differentiable function, with its derivative by hand.

Step by step, autograd would keep ten nodes for each of them. Here the gates of all steps are one
buffer, which is overwritten with their values, and the way back goes through the same buffers: one
product and a few passes over ``[B, H]`` for each step. Nothing reads two rows.

The gates' gradient is all that per-record gradients need. In a checked capture the gradients of the
recurrent weight and its bias are asked for too. They come from autograd through ordinary steps, so
that the comparison shows whether the derivative here is right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plumbline.compiled import in_threads

State = tuple[Tensor, ...]
"""The hidden state ``(h,)``, or ``(h, c)`` for an LSTM; ``[B, H]`` each."""

Unrolled = Callable[[Tensor, State], tuple[Tensor, State]]
"""The same steps by ordinary functions: outputs and last state, from gates and first state."""

_MANY = 1 << 18  # numbers in all gates, from which on compiled loops pay


class Moves(NamedTuple):
    """The weights ``W + scale_i (O_i + sum_p left_ip right_ip^T)`` of each record.

    Attributes:
        weight: W, ``[m, H]``.
        offsets: ``[B, m, H]``, or ``[0, m, H]`` for none.
        left: ``[B, P, m]``.
        right: ``[B, P, H]``.
        scale: ``[B]``.
    """

    weight: Tensor
    offsets: Tensor
    left: Tensor
    right: Tensor
    scale: Tensor


class Recurrent(Protocol):
    """``h W^T + b`` at each row's own weights."""

    @property
    def moves(self) -> Moves | None:
        """Each record's own weights; None if all have the same."""

    def add_to(self, base: Tensor, inputs: Tensor) -> Tensor:
        """``base [B, m]``, to which the outputs of inputs ``[B, H]`` were added in place."""

    def pulled(self, back: Tensor) -> Tensor:
        """The gradient ``[B, H]`` of the inputs from that of the outputs, ``[B, m]``."""


class Scan(torch.autograd.Function):
    """Outputs ``[B, T, H]`` and last states from gates ``[B, T, m]``, which are overwritten."""

    @staticmethod
    def forward(
        ctx: Any, steps: Steps, gates: Tensor, h: Tensor, c: Tensor | None, *weights: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.steps = steps
        ctx.set_materialize_grads(False)
        if any(ctx.needs_input_grad[4:]):
            ctx.save_for_backward(gates.clone(), h, c, *weights)
        with torch._C.DisableTorchFunction():
            return steps.forward(gates, h, c)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        slopes: Sequence[Tensor | None] = (None,) * len(ctx.needs_input_grad[4:])
        if any(ctx.needs_input_grad[4:]):
            slopes = _by_autograd(ctx.steps.unrolled, gradients, *ctx.saved_tensors)
        with torch._C.DisableTorchFunction():
            return None, *ctx.steps.backward(*gradients), *slopes


def _by_autograd(
    unrolled: Unrolled,
    gradients: Sequence[Tensor | None],
    gates: Tensor,
    h: Tensor,
    c: Tensor | None,
    *weights: Tensor | None,
) -> list[Tensor | None]:
    """Autograd's own gradients of ``weights``."""
    with torch.enable_grad():
        output, end = unrolled(gates, tuple(one.detach() for one in (h, c) if one is not None))
        pairs = zip((output, *end), gradients, strict=True)
        outputs, backs = zip(*((one, d) for one, d in pairs if d is not None), strict=True)
        known = [one for one in weights if one is not None and one.requires_grad]
        found = iter(torch.autograd.grad(outputs, known, backs))
    return [next(found) if one is not None and one.requires_grad else None for one in weights]


class Steps(ABC):
    """The steps of one run, which keeps what the way back needs.

    Attributes:
        unrolled: The same by ordinary functions.
    """

    has_cells = False

    def __init__(self, recurrent: Recurrent, unrolled: Unrolled, *, backwards: bool) -> None:
        self.unrolled = unrolled
        self._recurrent = recurrent
        self._backwards = backwards

    @property
    def met(self) -> Tensor:
        """The recurrent weight's input at each step, ``[B, T, H]``."""
        return _by_row(self._hidden[1:] if self._backwards else self._hidden[:-1])

    @property
    def resets(self) -> Tensor | None:
        """The scale of the hidden part of a GRU's new gate, ``[B, T, H]``."""
        return None

    def forward(self, gates: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
        """Outputs and last states."""
        rows, length, _ = gates.shape
        self._gates = gates
        # [T + 1, B, H]: a state stands between the steps that write and read it, in time's order.
        self._hidden = gates.new_empty(length + 1, rows, h.shape[1])
        self._order = [(t, t, t + 1) for t in range(length)]
        if self._backwards:
            self._order = [(t, t + 1, t) for t in reversed(range(length))]
        first, last = (length, 0) if self._backwards else (0, length)
        self._hidden[first] = h
        self._begin(first, c)
        self._run()
        output = _by_row(self._hidden[:-1] if self._backwards else self._hidden[1:])
        # Copies: the model may change them in place.
        return output, self._hidden[last].clone(), *self._end(last)

    def backward(
        self, d_output: Tensor | None, d_last: Tensor | None, d_cells: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the gates and of the first states."""
        back = torch.empty_like(self._gates)
        d_h, d_c = self._hidden.new_zeros(2, *self._hidden.shape[1:])
        if d_last is not None:
            d_h += d_last
        if d_cells is not None:
            d_c += d_cells
        d_h = self._run_back(back, d_output, d_h, d_c)
        return back, d_h, d_c if self.has_cells else None

    def _run(self) -> None:
        """All steps."""
        for order in self._order:
            self._step(*order)

    def _run_back(self, back: Tensor, d_output: Tensor | None, d_h: Tensor, d_c: Tensor) -> Tensor:
        """All steps back; returns the gradient of the first state."""
        for t, before, _ in reversed(self._order):
            if d_output is not None:
                d_h += d_output[:, t]
            d_h = self._step_back(t, before, back, d_h, d_c)
        return d_h

    def _begin(self, first: int, c: Tensor | None) -> None:  # noqa: B027 (there may be nothing)
        """Makes room for what else a step keeps."""

    def _end(self, last: int) -> tuple[Tensor, ...]:
        """The last states beside the hidden one."""
        return ()

    @abstractmethod
    def _step(self, t: int, before: int, after: int) -> None:
        """Step t, from the state at place ``before`` to that at ``after``."""

    @abstractmethod
    def _step_back(self, t: int, before: int, back: Tensor, d_h: Tensor, d_c: Tensor) -> Tensor:
        """Writes the gradient of step t's gates to ``back``; returns that of the state before.

        ``d_h`` is the gradient of the state after it; ``d_c`` that of the cells after it, which
        becomes that of those before.
        """


class Simple(Steps):
    """``h_t = tanh(gate_t + W h_{t-1})``, or with a ReLU."""

    def __init__(self, *args: Any, relu: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._relu = relu

    def _step(self, t: int, before: int, after: int) -> None:
        gate = self._recurrent.add_to(self._gates[:, t], self._hidden[before])
        self._hidden[after] = gate.relu_() if self._relu else gate.tanh_()

    def _step_back(self, t: int, before: int, back: Tensor, d_h: Tensor, d_c: Tensor) -> Tensor:
        value, d_gate = self._gates[:, t], back[:, t]
        if self._relu:
            torch.where(value > 0, d_h, d_h.new_zeros(()), out=d_gate)
        else:
            _tanh_back(d_h, value, d_gate)
        return self._recurrent.pulled(d_gate)


class Gru(Steps):
    """``r, z = sigmoid(.)``, ``n = tanh(gate_n + r hidden_n)``, ``h_t = n + z (h_{t-1} - n)``."""

    @property
    def resets(self) -> Tensor | None:
        return self._gates[..., : self._hidden.shape[2]]

    def _begin(self, first: int, c: Tensor | None) -> None:
        self._inner = torch.empty_like(self._hidden[1:])  # the hidden part of the new gate
        self._part = torch.empty_like(self._gates[:, 0])

    def _step(self, t: int, before: int, after: int) -> None:
        h, gate = self._hidden[before], self._gates[:, t]
        size = h.shape[1]
        hidden = self._recurrent.add_to(self._part.zero_(), h)
        self._inner[t] = hidden[:, 2 * size :]
        reset, update = gate[:, : 2 * size].add_(hidden[:, : 2 * size]).sigmoid_().chunk(2, 1)
        new = gate[:, 2 * size :].addcmul_(reset, hidden[:, 2 * size :]).tanh_()
        torch.addcmul(new, update, h - new, out=self._hidden[after])

    def _step_back(self, t: int, before: int, back: Tensor, d_h: Tensor, d_c: Tensor) -> Tensor:
        reset, update, new = self._gates[:, t].chunk(3, 1)
        d_reset, d_update, d_new = back[:, t].chunk(3, 1)
        _sigmoid_back(d_h * (self._hidden[before] - new), update, d_update)
        _tanh_back(d_h - d_h * update, new, d_new)
        _sigmoid_back(d_new * self._inner[t], reset, d_reset)
        inner = torch.cat([d_reset, d_update, d_new * reset], 1)
        return self._recurrent.pulled(inner).addcmul_(d_h, update)


class Lstm(Steps):
    """``i, f, g, o``; ``c_t = f c_{t-1} + i g`` and ``h_t = o tanh(c_t)``."""

    has_cells = True

    def _begin(self, first: int, c: Tensor | None) -> None:
        assert c is not None
        self._cells = torch.empty_like(self._hidden)
        self._cells[first] = c
        self._curved = torch.empty_like(self._hidden[1:])  # tanh(c_t)
        gates = self._gates
        self._loops: Any = None
        if gates.numel() >= _MANY and gates.dtype == torch.float32 and gates.device.type == "cpu":
            from plumbline.gradients import gate_loops  # numba, which takes time to import

            self._loops = gate_loops
            kept = (gates, self._cells, self._curved)
            self._arrays = [one.detach().numpy() for one in kept]
            self._states = self._hidden.numpy()

    def _run(self) -> None:
        moves = None if self._loops is None else self._recurrent.moves
        if moves is not None and len(moves.scale) < len(self._gates):
            moves = None  # a record has several rows
        self._moves = moves
        if moves is None:
            return super()._run()
        weight, offsets, left, right, scale = moves
        own = _arrays(weight.T, offsets, left, right.transpose(1, 2), scale)
        given = (*self._arrays, self._states, *own, self._backwards)
        in_threads(lambda *part: self._loops.lstm_rows(*given, *part), len(self._gates), 1)

    def _run_back(self, back: Tensor, d_output: Tensor | None, d_h: Tensor, d_c: Tensor) -> Tensor:
        if self._moves is None:
            return super()._run_back(back, d_output, d_h, d_c)
        weight, offsets, left, right, scale = self._moves
        if d_output is None:
            d_output = torch.zeros_like(_by_row(self._curved))
        given = (
            *self._arrays,
            *_arrays(weight, offsets, left.transpose(1, 2), right, scale, back, d_h, d_c, d_output),
            self._backwards,
        )
        in_threads(lambda *part: self._loops.lstm_rows_back(*given, *part), len(back), 1)
        return d_h

    def _end(self, last: int) -> tuple[Tensor, ...]:
        return (self._cells[last].clone(),)

    def _step(self, t: int, before: int, after: int) -> None:
        gate = self._recurrent.add_to(self._gates[:, t], self._hidden[before])
        if self._loops is not None:
            self._loops.lstm_step(*self._arrays, self._states, t, before, after)
            return
        size = self._hidden.shape[2]
        enter, forget = gate[:, : 2 * size].sigmoid_().chunk(2, 1)
        value, leave = gate[:, 2 * size : 3 * size].tanh_(), gate[:, 3 * size :].sigmoid_()
        cells = torch.mul(forget, self._cells[before], out=self._cells[after])
        curved = torch.tanh(cells.addcmul_(enter, value), out=self._curved[t])
        torch.mul(leave, curved, out=self._hidden[after])

    def _step_back(self, t: int, before: int, back: Tensor, d_h: Tensor, d_c: Tensor) -> Tensor:
        if self._loops is not None:
            flowed = (back.numpy(), d_h.numpy(), d_c.numpy())
            self._loops.lstm_step_back(*self._arrays, *flowed, t, before)
            return self._recurrent.pulled(back[:, t])
        enter, forget, value, leave = self._gates[:, t].chunk(4, 1)
        d_enter, d_forget, d_value, d_leave = back[:, t].chunk(4, 1)
        curved = self._curved[t]
        _sigmoid_back(d_h * curved, leave, d_leave)
        d_c += torch.ops.aten.tanh_backward(d_h * leave, curved)
        _sigmoid_back(d_c * value, enter, d_enter)
        _sigmoid_back(d_c * self._cells[before], forget, d_forget)
        _tanh_back(d_c * enter, value, d_value)
        d_c *= forget
        return self._recurrent.pulled(back[:, t])


def _by_row(steps: Tensor) -> Tensor:
    """A copy ``[B, T, H]`` of ``[T, B, H]``."""
    return steps.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def _arrays(*tensors: Tensor) -> list[Any]:
    """The tensors as arrays, row after row in memory (without a copy if they are so already)."""
    return [one.detach().contiguous().numpy() for one in tensors]


def _sigmoid_back(back: Tensor, value: Tensor, out: Tensor) -> None:
    torch.ops.aten.sigmoid_backward.grad_input(back, value, grad_input=out)


def _tanh_back(back: Tensor, value: Tensor, out: Tensor) -> None:
    torch.ops.aten.tanh_backward.grad_input(back, value, grad_input=out)
