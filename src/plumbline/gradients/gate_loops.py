"""One step of an LSTM's gates for all rows, and its derivative, each in one compiled pass.

A row's numbers depend on that row alone. Numba has no vector instructions for ``exp`` and ``tanh``
without a proprietary library, so both are written out (as in Cephes), to within 2 units in the last
place or 1e-7, in additions and multiplications that the compiler turns into vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from plumbline.compiled import compiled

Floats = NDArray[np.float32]

_0, _1, _2 = np.float32(0), np.float32(1), np.float32(2)  # Python's numbers would be float64
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
_LOG2E, _LN2, _LN2_REST = (
    np.float32(1.4426950408889634),
    np.float32(0.693359375),
    np.float32(-2.12194440e-4),
)
_ROUND = np.float32(
    12582912.0
)  # 1.5 * 2^23: added to a number, it leaves an integer in the last bits
_E0, _E1, _E2 = (
    np.float32(1.9875691500e-4),
    np.float32(1.3981999507e-3),
    np.float32(8.3334519073e-3),
)
_E3, _E4, _E5 = (
    np.float32(4.1665795894e-2),
    np.float32(1.6666665459e-1),
    np.float32(5.0000001201e-1),
)
_T0, _T1, _T2 = (
    np.float32(-5.70498872745e-3),
    np.float32(2.06390887954e-2),
    np.float32(-5.37397155531e-2),
)
_T3, _T4 = np.float32(1.33314422036e-1), np.float32(-3.33332819422e-1)
_SMALL = np.float32(0.625)


@intrinsic
def _power_of_two(context: Any, rounded: Any) -> Any:
    """``2^n`` from the float32 ``n + _ROUND``, whose last bits are n."""

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(32))
        exponent = builder.add(bits, ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(
            builder.shl(exponent, ir.Constant(ir.IntType(32), 23)), ir.FloatType()
        )

    return types.float32(types.float32), generated


@compiled()
def _exp(x: np.float32) -> np.float32:
    x = _LEAST if x < _LEAST else x  # NaN stays
    x = _MOST if x > _MOST else x
    rounded = x * _LOG2E + _ROUND
    n = rounded - _ROUND
    r = (x - n * _LN2) - n * _LN2_REST
    y = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    return (y * (r * r) + r + _1) * _power_of_two(rounded)  # type: ignore[call-arg]


@compiled()
def sigmoid(x: np.float32) -> np.float32:
    """``1 / (1 + exp(-x))``."""
    value: np.float32 = np.divide(_1, _1 + _exp(-x))  # `/` would look for zeros, one by one
    return value


@compiled()
def tanh(x: np.float32) -> np.float32:
    """The hyperbolic tangent; by its series near zero, where the quotient would cancel."""
    size = abs(x)
    z = x * x
    near = ((((_T0 * z + _T1) * z + _T2) * z + _T3) * z + _T4) * z * x + x
    far = _1 - np.divide(_2, _exp(_2 * size) + _1)
    far = -far if x < _0 else far
    return near if size < _SMALL else far


@compiled()
def _row(gate: Floats, old: Floats, new: Floats, bent: Floats, out: Floats) -> None:
    """One row's step: its gates ``[4 H]`` in place, and its next states."""
    size = len(old)
    enter, forget = gate[:size], gate[size : 2 * size]
    value, leave = gate[2 * size : 3 * size], gate[3 * size :]
    for j in range(size):
        enter[j] = sigmoid(enter[j])
    for j in range(size):
        forget[j] = sigmoid(forget[j])
    for j in range(size):
        value[j] = tanh(value[j])
    for j in range(size):
        leave[j] = sigmoid(leave[j])
    for j in range(size):
        new[j] = forget[j] * old[j] + enter[j] * value[j]
    for j in range(size):
        bent[j] = tanh(new[j])
    for j in range(size):
        out[j] = leave[j] * bent[j]


@compiled()
def _row_back(
    gate: Floats, old: Floats, bent: Floats, back: Floats, d_h: Floats, d_c: Floats
) -> None:
    """The gradient ``back [4 H]`` of one row's gates; ``d_c`` becomes that of the old cells."""
    size = len(old)
    for j in range(size):
        i, f = gate[j], gate[j + size]
        g, o = gate[j + 2 * size], gate[j + 3 * size]
        h, c = d_h[j], bent[j]
        total = d_c[j] + h * o * (_1 - c * c)
        back[j] = total * g * (i * (_1 - i))
        back[j + size] = total * old[j] * (f * (_1 - f))
        back[j + 2 * size] = total * i * (_1 - g * g)
        back[j + 3 * size] = h * c * (o * (_1 - o))
        d_c[j] = total * f


@compiled()
def lstm_step(
    gates: Floats, cells: Floats, curved: Floats, hidden: Floats, t: int, before: int, after: int
) -> None:
    """Step t: gates ``[B, T, 4 H]`` become sigmoids and tanhs, in place.

    States before and after it stand at those places of ``cells`` and ``hidden`` ``[T + 1, B, H]``,
    and the tanh of the new cells goes to ``curved [T, B, H]``.
    """
    for row in range(len(gates)):
        _row(
            gates[row, t], cells[before, row], cells[after, row], curved[t, row], hidden[after, row]
        )


@compiled()
def lstm_step_back(
    gates: Floats, cells: Floats, curved: Floats, d_gates: Floats, d_hidden: Floats,
    d_cells: Floats, t: int, before: int,
) -> None:  # fmt: skip
    """The gradient of step t's gates before their nonlinearities, into ``d_gates [B, T, 4 H]``.

    From the gradient ``d_hidden [B, H]`` of its output, and ``d_cells [B, H]`` of its new cells,
    which becomes that of the old ones.
    """
    for row in range(len(gates)):
        _row_back(
            gates[row, t], cells[before, row], curved[t, row],
            d_gates[row, t], d_hidden[row], d_cells[row],
        )  # fmt: skip


@compiled()
def _add_products(total: Floats, factors: Floats, rows: Floats) -> None:
    """Adds ``sum_k factors_k rows_k`` to ``total``."""
    by_eight = len(rows) - len(rows) % 8
    for k in range(0, by_eight, 8):
        f0, f1, f2, f3 = factors[k], factors[k + 1], factors[k + 2], factors[k + 3]
        f4, f5, f6, f7 = factors[k + 4], factors[k + 5], factors[k + 6], factors[k + 7]
        r0, r1, r2, r3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        r4, r5, r6, r7 = rows[k + 4], rows[k + 5], rows[k + 6], rows[k + 7]
        for j in range(len(total)):
            total[j] += ((f0 * r0[j] + f1 * r1[j]) + (f2 * r2[j] + f3 * r3[j])) + (
                (f4 * r4[j] + f5 * r5[j]) + (f6 * r6[j] + f7 * r7[j])
            )
    for k in range(by_eight, len(rows)):
        factor, row = factors[k], rows[k]
        for j in range(len(total)):
            total[j] += factor * row[j]


@compiled()
def _turn(own: Floats, weight: Floats, offset: Floats, scale: np.float32) -> None:
    """``own = weight + scale offset^T``, a few of the offset's rows at a time."""
    for first in range(0, len(offset), 16):
        last = min(first + 16, len(offset))
        for k in range(len(own)):
            for j in range(first, last):
                own[k, j] = weight[k, j] + scale * offset[j, k]


@compiled()
def lstm_rows(
    gates: Floats, cells: Floats, curved: Floats, hidden: Floats, weight: Floats, offsets: Floats,
    left: Floats, right: Floats, scale: Floats, backwards: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """All steps of rows ``start .. stop - 1``, one row after the other, each at its own weights.

    A row's weights are small enough to stay in the cache for all its steps. They are ``weight +
    scale_i (offsets_i + left_i^T right_i)``, from ``weight [H, 4 H]``, ``offsets [B, 4 H, H]`` (or
    none), ``left [B, P, 4 H]`` and ``right [B, H, P]``.
    """
    length = gates.shape[1]
    along = np.empty(left.shape[1], np.float32)
    own = weight.copy()
    for row in range(start, stop):
        if len(offsets):
            _turn(own, weight, offsets[row], scale[row])
        for step in range(length):
            t = length - 1 - step if backwards else step
            before, after = (t + 1, t) if backwards else (t, t + 1)
            gate, h = gates[row, t], hidden[before, row]
            _add_products(gate, h, own)
            along[:] = _0
            _add_products(along, h, right[row])
            for p in range(len(along)):
                along[p] *= scale[row]
            _add_products(gate, along, left[row])
            _row(gate, cells[before, row], cells[after, row], curved[t, row], hidden[after, row])


@compiled()
def lstm_rows_back(
    gates: Floats, cells: Floats, curved: Floats, weight: Floats, offsets: Floats, left: Floats,
    right: Floats, scale: Floats, d_gates: Floats, d_hidden: Floats, d_cells: Floats,
    d_output: Floats, backwards: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """The way back through ``lstm_rows``, with the gates first in all weights.

    ``weight [4 H, H]``, ``left [B, 4 H, P]`` and ``right [B, P, H]``. The gradients
    ``d_hidden`` and ``d_cells`` ``[B, H]`` of the last states become those of the first ones;
    ``d_output`` is ``[B, T, H]``.
    """
    length = gates.shape[1]
    along = np.empty(right.shape[1], np.float32)
    own = weight.copy()
    for row in range(start, stop):
        if len(offsets):
            for k in range(len(own)):
                moved, shared, offset = own[k], weight[k], offsets[row, k]
                for j in range(len(moved)):
                    moved[j] = shared[j] + scale[row] * offset[j]
        d_h, d_c = d_hidden[row], d_cells[row]
        for step in range(length):
            t = step if backwards else length - 1 - step
            flowed = d_output[row, t]
            for j in range(len(d_h)):
                d_h[j] += flowed[j]
            back = d_gates[row, t]
            _row_back(
                gates[row, t], cells[t + 1 if backwards else t, row], curved[t, row], back, d_h, d_c
            )
            d_h[:] = _0
            _add_products(d_h, back, own)
            along[:] = _0
            _add_products(along, back, left[row])
            for p in range(len(along)):
                along[p] *= scale[row]
            _add_products(d_h, along, right[row])
