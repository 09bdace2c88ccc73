"""Numbers as text, the same on the page, in the terminal and in tables; words and cells in a row.

Every function of numbers takes one or whatever stands where there is none (None, an ``Undefined``,
the reason as text), which is shown as a dash; and, where it has one, the standard error beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

MISSING = "–"
_SPECIAL = re.compile(r"[\\`*\[\]<|~&#]|(?<!\w)_|_(?!\w)")  # to Markdown
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def finite(value: object) -> float | None:
    """The number, or None for whatever is not a finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def number(value: object, error: object = None, digits: int = 3) -> str:
    """With so many digits after the point: a loss, a cosine."""
    return _beside(value, error, 1.0, digits, "")


def points(value: object, error: object = None, digits: int = 1) -> str:
    """A share in points: 0.781 is "78.1"."""
    return _beside(value, error, 100.0, digits, "")


def percent(value: object, error: object = None, digits: int = 1) -> str:
    """A share in per cent: 0.781 is "78.1%"."""
    return _beside(value, error, 100.0, digits, "%")


def degrees(value: object, digits: int = 0) -> str:
    """An angle: "39°"."""
    return _beside(value, None, 1.0, digits, "°")


def short(value: object, digits: int = 3) -> str:
    """In so many significant digits: a number of whatever size."""
    one = finite(value)
    return MISSING if one is None else f"{one:.{digits}g}"


def tiny(value: float) -> str:
    """A small number as people write it: 1e-5."""
    if value >= 0.01:
        return f"{value:g}"
    digits, _, exponent = f"{value:e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def amount(value: object, error: object = None) -> str:
    """A number in a unit of its own: "0.0123", "12.3", "12,300"."""
    one, spread = finite(value), finite(error)
    if one is None:
        return MISSING
    texts = [f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3g}" for v in (one, spread) if v is not None]
    return " ± ".join(texts)


def seconds(value: object) -> str:
    """A duration: "3 s", "2 min", "2.0 h"."""
    one = finite(value)
    if one is None:
        return MISSING
    if one < 100:
        return f"{one:.0f} s"
    return f"{one / 60:.0f} min" if one < 6000 else f"{one / 3600:.1f} h"


def angle(cosine: object) -> float | None:
    """The angle in degrees, of its cosine."""
    one = finite(cosine)
    return None if one is None else math.degrees(math.acos(max(-1.0, min(1.0, one))))


def listed(parts: Sequence[str]) -> str:
    """Words in a row: "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Text that Markdown shows as it is, on one line, in a table or beside one."""
    line = " ".join(shown(text).split())
    return _SPECIAL.sub(r"\\\g<0>", line)


def fenced(text: str, language: str) -> str:
    """Text as a block of code in Markdown, whatever it holds."""
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * max(3, 1 + max(runs, default=0))
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def shown(text: str) -> str:
    r"""Text whose control characters are shown, as ``\x1b``, and do nothing to a terminal.

    Those that change the direction of what follows are among them. Lines stay lines.
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def _beside(value: object, error: object, scale: float, digits: int, unit: str) -> str:
    one, spread = finite(value), finite(error)
    if one is None:
        return MISSING
    beside = "" if spread is None else f" ± {scale * spread:.{digits}f}"
    return f"{scale * one:.{digits}f}{beside}{unit}"
