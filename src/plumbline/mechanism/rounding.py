"""Bounds as text, always rounded to the safe side.

Guarantee: a claimed epsilon, an upper bound, is never shown smaller than it is; an epsilon measured
by an audit, a lower bound, is never shown larger. What is rounded is the shortest decimal of the
float: 3.1 is 3.10, although the float is slightly above it.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_EXACT = Context(prec=1100)  # holds every float, written out, with digits to spare


def rounded_up(value: float, digits: int = 3, infinite: str = "inf") -> str:
    """At least `value`, in `digits` digits, or as an integer if it has more before the point."""
    return _rounded(value, digits, infinite, ROUND_CEILING)


def rounded_down(value: float, digits: int = 3, infinite: str = "inf") -> str:
    """At most `value`, which is not negative, in the same form."""
    return _rounded(value, digits, infinite, ROUND_FLOOR)


def up_to_places(value: float, places: int) -> str:
    """At least `value`, with `places` digits after the point, for a line that is updated."""
    return _quantised(value, places, ROUND_CEILING)


def _rounded(value: float, digits: int, infinite: str, way: str) -> str:
    if value <= 0:
        return "0"
    if math.isinf(value):
        return infinite
    return _quantised(value, max(0, digits - 1 - math.floor(math.log10(value))), way)


def _quantised(value: float, places: int, way: str) -> str:
    return f"{Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), way, _EXACT):,f}"
