"""A small chart in text: one line through a few dozen points."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_PLAIN = " ....::::"


def columns(values: Sequence[float], height: int, *, blocks: bool = True) -> list[str]:
    """A column for each value, from zero to the largest: the chart's rows from top to bottom.

    Args:
        values: Not negative.
        height: The number of rows.
        blocks: Whether eighths of a character can be shown; otherwise dots.
    """
    steps = _BLOCKS if blocks else _PLAIN
    top = max(values, default=0.0) or 1.0
    eighths = [round(8 * height * value / top) for value in values]
    return [
        "".join(steps[min(8, max(0, level - 8 * row))] for level in eighths)
        for row in reversed(range(height))
    ]


def chart(
    values: Sequence[float], *, last: float, unit: str, height: int = 6, blocks: bool = True
) -> list[str]:
    """Columns with both axes: the values' scale on the left, from 0 to ``last`` below.

    Args:
        values: One for each column.
        last: What lies below the last column.
        unit: What is counted below.
        height: Rows of columns.
        blocks: As for ``columns``.
    """
    top = max(values, default=0.0)
    marks = {0: f"{top:.3g}", height // 2: f"{top * (height - height // 2) / height:.3g}"}
    edge = max(len(mark) for mark in marks.values())
    side, corner, line = ("┤", "└", "─") if blocks else ("|", "+", "-")
    rows = [
        f"{marks.get(place, ''):>{edge}} {side}{row}"
        for place, row in enumerate(columns(values, height, blocks=blocks))
    ]
    end = f"{last:g} {unit}"
    below = f"{'0':<{max(1, len(values) - len(end))}}{end}"
    return [*rows, f"{'0':>{edge}} {corner}{line * len(values)}", f"{'':>{edge}}  {below}"]
