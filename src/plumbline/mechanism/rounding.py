"""Bounds as text, rounded against whoever states them.

Guarantee: an epsilon that is claimed, a bound from above, is never shown smaller than it is; one
that an audit has measured, a bound from below, is never shown larger. It is the shortest decimal of
the float that is rounded: 3.1 is 3.10, though the float is just above it.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_EXACT = Context(prec=1100)  # holds every float, written out, with some digits to spare


def rounded_up(value: float, digits: int = 3, infinite: str = "inf") -> str:
    """At least `value`, in `digits` digits, or whole where it has more before the point."""
    return _rounded(value, digits, infinite, ROUND_CEILING)


def rounded_down(value: float, digits: int = 3, infinite: str = "inf") -> str:
    """At most `value`, which is not negative, in the same form."""
    return _rounded(value, digits, infinite, ROUND_FLOOR)


def up_to_places(value: float, places: int) -> str:
    """At least `value`, with `places` digits after the point: numbers of a line that is updated."""
    return _quantized(value, places, ROUND_CEILING)


def _rounded(value: float, digits: int, infinite: str, way: str) -> str:
    if value <= 0:
        return "0"
    if math.isinf(value):
        return infinite
    return _quantized(value, max(0, digits - 1 - math.floor(math.log10(value))), way)


def _quantized(value: float, places: int, way: str) -> str:
    return f"{Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), way, _EXACT):,f}"
