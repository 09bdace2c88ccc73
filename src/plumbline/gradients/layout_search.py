"""Other readings of a batch's layouts, when the first one proves wrong.

A tensor's layout can be read in two ways only by chance: a batch as long as a sequence. A wrong
reading shows as an error (shapes that do not fit) or as a gradient that is not autograd's, at the
parameter that met the misread tensor. What a reading leads to is only known by running it, so this
is a search with backtracking over the choices that a run has met.
"""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.gradients.tape import LayoutChoice, Place, Where

_LIMIT = 32


class Readings:
    """The readings tried so far, and the next one to try."""

    def __init__(self) -> None:
        self._tried: set[frozenset[tuple[Place, Where]]] = {frozenset()}

    def after(
        self, choices: Mapping[Place, LayoutChoice], parameter: str | None
    ) -> dict[Place, Where] | None:
        """The next reading, after a run that met ``choices`` and was wrong at ``parameter``.

        The last choice that has another way takes it, and the choices behind it start afresh. When
        the run ended by an error (no ``parameter``), any choice may be to blame; else only those at
        the parameter. None when nothing is left to try.
        """
        if len(self._tried) >= _LIMIT:
            return None
        order = list(choices)
        for position in range(len(order) - 1, -1, -1):
            place = order[position]
            if parameter is not None and place[0] != parameter:
                continue
            fixed = {
                other: choices[other].taken
                for at, other in enumerate(order)
                if at < position or (parameter is not None and other[0] != parameter)
            }
            ways = choices[place].ways
            for way in ways[ways.index(choices[place].taken) + 1 :]:
                reading = {**fixed, place: way}
                if (key := frozenset(reading.items())) not in self._tried:
                    self._tried.add(key)
                    return reading
        return None
