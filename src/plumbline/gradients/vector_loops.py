"""Steps of compiled loops in vector registers, written in LLVM's own words.

Numba's compiler does not find them by itself: sums over positions that stay in the registers, and
the transposition of 8 x 8 numbers. Numba keeps compiled loops on the disk by the file in which they
are written, so a change here needs a change in the files that use it.

How wide the vectors are depends on the processor, and no result does: each number is summed by
itself, position after position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic
from numpy.typing import NDArray

from plumbline.compiled import compiled

# Vectors of sums, with their factors, that fit the registers: 32 of 16 numbers, or 16 of 8.
ROWS, LANES = (8, 16) if binding.get_host_cpu_features().get("avx512f") else (4, 8)
VECTORS = 3
COLUMNS = LANES * VECTORS

TURNED = 8
"""The side of a square of numbers that ``turn`` transposes."""

DOUBLE_COLUMNS = COLUMNS // 2

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_TURNED = ir.VectorType(ir.FloatType(), TURNED)
_HALF = ir.VectorType(ir.FloatType(), LANES // 2)
_HALF_DOUBLES = ir.VectorType(ir.DoubleType(), LANES // 2)
_FUSED = ["contract"]  # multiplication and addition in one instruction

_step: Callable[[Callable[..., Any]], Callable[..., None]] = intrinsic(prefer_literal=True)

Cells = dict[tuple[int, int], Any]
"""Vectors, or their places, by row and by number in the row."""


@compiled()
def lined_up(numbers: int) -> NDArray[np.float32]:
    """So many float32 zeros, from the beginning of a line of the cache on.

    A vector across two lines takes twice as long to load.
    """
    room = np.zeros(numbers + 16, np.float32)
    first = (64 - room.ctypes.data % 64) % 64 // 4
    return room[first : first + numbers]


@_step
def add_tile(
    typing: Any, sums: Any, at: Any, step: Any, left: Any, left_at: Any, left_row: Any,
    left_line: Any, left_x: Any, right: Any, right_at: Any, right_line: Any, right_x: Any,
    lines: Any, width: Any, vectors: Any,
) -> Any:  # fmt: skip
    """Adds a sum over positions (y, x) to ``ROWS`` rows of ``sums`` that are ``step`` apart.

    Row r gets ``left[left_at + r left_row + y left_line + x left_x]`` times the ``vectors`` vectors
    from ``right[right_at + y right_line + x right_x]`` on.
    """
    given = (sums, at, step, left, left_at, left_row, left_line, left_x, right, right_at,
             right_line, right_x, lines, width, vectors)  # fmt: skip

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums, left, right = (_memory(context, builder, signature, args, n) for n in (0, 3, 8))
        cells = _places(builder, args[1], args[2], vectors.literal_value)
        begun = {cell: _load(builder, sums, place, _FLOATS) for cell, place in cells.items()}
        ended = _summed(builder, begun, left, args[4:8], right, args[9:12], args[12:14])
        for cell, place in cells.items():
            _store(builder, ended[cell], sums, place)
        return context.get_dummy_value()

    return types.void(*given), generated


@_step
def add_weighted_tile(
    typing: Any, total: Any, at: Any, step: Any, weight: Any, left: Any, left_at: Any, left_x: Any,
    right: Any, right_at: Any, right_x: Any, width: Any, vectors: Any,
) -> Any:  # fmt: skip
    """Adds such a sum over one line, whose rows are neighbours in ``left``, times a weight.

    The sum itself is complete, in float32, before it is added to ``total`` in float64.
    """
    given = (total, at, step, weight, left, left_at, left_x, right, right_at, right_x, width,
             vectors)  # fmt: skip

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, left, right = (_memory(context, builder, signature, args, n) for n in (0, 4, 7))
        cells = _places(builder, args[1], args[2], vectors.literal_value)
        zeros = dict.fromkeys(cells, ir.Constant(_FLOATS, [0.0] * LANES))
        one, none = _number(1), _number(0)
        ended = _summed(
            builder, zeros, left, (args[5], one, none, args[6]), right, (args[8], none, args[9]),
            (one, args[10]),
        )  # fmt: skip
        weight = _everywhere(builder, args[3], _DOUBLES)
        for cell, place in cells.items():
            product = builder.fmul(builder.fpext(ended[cell], _DOUBLES), weight, flags=_FUSED)
            before = _load(builder, total, place, _DOUBLES)
            _store(builder, builder.fadd(before, product, flags=_FUSED), total, place)
        return context.get_dummy_value()

    return types.void(*given), generated


@_step
def add_double_tile(
    typing: Any, total: Any, at: Any, step: Any, left: Any, left_at: Any, right: Any,
    right_at: Any, width: Any,
) -> Any:  # fmt: skip
    """Adds a sum over ``width`` positions to ``ROWS`` rows of ``total``, all in float64.

    ``left`` has ``ROWS`` float64 factors for each position, ``right`` ``DOUBLE_COLUMNS`` float32
    numbers, position after position.
    """
    given = (total, at, step, left, left_at, right, right_at, width)

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, left, right = (_memory(context, builder, signature, args, n) for n in (0, 3, 5))
        one, none = _number(1), _number(0)
        cells = _places(builder, args[1], args[2], VECTORS, LANES // 2)
        begun = {cell: _load(builder, total, place, _HALF_DOUBLES) for cell, place in cells.items()}
        ended = _summed(
            builder, begun, left, (args[4], one, none, _number(ROWS)), right,
            (args[6], none, _number(DOUBLE_COLUMNS)), (one, args[7]), _HALF,
        )  # fmt: skip
        for cell, place in cells.items():
            _store(builder, ended[cell], total, place)
        return context.get_dummy_value()

    return types.void(*given), generated


@_step
def scale_into(
    typing: Any, source: Any, at: Any, target: Any, to: Any, factor: Any, lanes: Any
) -> Any:
    """Puts ``lanes`` float32 numbers times a float64 factor, rounded once, into ``target``."""

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, end = (_memory(context, builder, signature, args, n) for n in (0, 2))
        count = lanes.literal_value
        floats, doubles = (ir.VectorType(one, count) for one in (ir.FloatType(), ir.DoubleType()))
        numbers = builder.fpext(_load(builder, start, args[1], floats), doubles)
        product = builder.fmul(numbers, _everywhere(builder, args[4], doubles))
        if target.dtype == types.float32:
            product = builder.fptrunc(product, floats)
        _store(builder, product, end, args[3])
        return context.get_dummy_value()

    return types.void(source, at, target, to, factor, lanes), generated


@_step
def turn(
    typing: Any, source: Any, at: Any, step: Any, target: Any, to: Any, target_step: Any
) -> Any:
    """Transposes 8 x 8 numbers, from rows ``step`` apart to rows ``target_step`` apart."""

    def generated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, end = (_memory(context, builder, signature, args, n) for n in (0, 3))

        def row(first: Any, step: Any, number: int) -> Any:
            return builder.add(first, builder.mul(step, _number(number)))

        rows = [_load(builder, start, row(args[1], args[2], n), _TURNED) for n in range(TURNED)]
        for far in (4, 2, 1):  # swaps the blocks off the diagonal, of 4 x 4, 2 x 2 and one number
            low = [lane + TURNED - far if lane & far else lane for lane in range(TURNED)]
            high = [lane + TURNED if lane & far else lane + far for lane in range(TURNED)]
            for n in range(TURNED):
                if not n & far:
                    pair = rows[n], rows[n + far]
                    rows[n] = builder.shuffle_vector(*pair, _lanes(low))
                    rows[n + far] = builder.shuffle_vector(*pair, _lanes(high))
        for n in range(TURNED):
            _store(builder, rows[n], end, row(args[4], args[5], n))
        return context.get_dummy_value()

    return types.void(source, at, step, target, to, target_step), generated


def _summed(
    builder: Any, begun: Cells, left: Any, left_places: Any, right: Any, right_places: Any,
    size: Any, stored: Any = _FLOATS,
) -> Cells:  # fmt: skip
    """The vectors ``begun`` after the products of all positions were added to them.

    Vectors of ``right`` are ``stored`` as these, and extended where ``begun`` are of float64.
    """
    add, times = builder.add, builder.mul
    kind = next(iter(begun.values())).type

    def vector(number: int) -> Any:
        place = add(vector_at, _number(stored.count * number))
        found = _load(builder, right, place, stored)
        return found if stored == kind else builder.fpext(found, kind)

    left_at, left_row, left_line, left_x = left_places
    right_at, right_line, right_x = right_places
    held = {}
    for cell, value in begun.items():
        held[cell] = alloca_once_value(builder, value)  # type: ignore[no-untyped-call]
        builder.store(value, held[cell])  # again: it was allocated once, perhaps outside of a loop
    vectors = 1 + max(number for _, number in begun)
    with for_range(builder, size[0]) as y, for_range(builder, size[1]) as x:
        row_at = add(left_at, add(times(left_line, y.index), times(left_x, x.index)))
        vector_at = add(right_at, add(times(right_line, y.index), times(right_x, x.index)))
        columns = [vector(number) for number in range(vectors)]
        for row in range(ROWS):
            place = add(row_at, times(left_row, _number(row)))
            factor = _everywhere(builder, builder.load(builder.gep(left, [place])), kind)
            for number in range(vectors):
                product = builder.fmul(factor, columns[number], flags=_FUSED)
                total = builder.fadd(builder.load(held[row, number]), product, flags=_FUSED)
                builder.store(total, held[row, number])
    return {cell: builder.load(place) for cell, place in held.items()}


def _places(builder: Any, at: Any, step: Any, vectors: int, lanes: int = LANES) -> Cells:
    """Where the vectors of ``ROWS`` rows begin."""
    return {
        (row, number): builder.add(
            builder.add(at, builder.mul(step, _number(row))), _number(lanes * number)
        )
        for row in range(ROWS)
        for number in range(vectors)
    }


def _memory(context: Any, builder: Any, signature: Any, args: Any, n: int) -> Any:
    """Where argument n, an array, begins."""
    return context.make_array(signature.args[n])(context, builder, args[n]).data


def _number(value: int) -> Any:
    return ir.Constant(ir.IntType(64), value)


def _lanes(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)


def _everywhere(builder: Any, number: Any, kind: Any) -> Any:
    """A vector of one number."""
    empty = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, empty, _lanes([0] * kind.count))


def _load(builder: Any, memory: Any, at: Any, kind: Any) -> Any:
    place = builder.bitcast(builder.gep(memory, [at]), kind.as_pointer())
    return builder.load(place, align=4)


def _store(builder: Any, vector: Any, memory: Any, at: Any) -> None:
    place = builder.bitcast(builder.gep(memory, [at]), vector.type.as_pointer())
    builder.store(vector, place, align=4)
