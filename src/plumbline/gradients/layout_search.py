"""Tries other layouts of a batch when the first one proves wrong.

A tensor's layout is ambiguous only by coincidence: a batch as long as a sequence. A wrong choice
shows as an error (shapes that do not fit) or as a gradient that differs from autograd's, at the
parameter that met the tensor. The consequences of a choice are only known by running it, so this is
a search with backtracking over the choices that a run met.
"""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.gradients.tape import LayoutChoice, Place, Where

_LIMIT = 32


class LayoutSearch:
    """The layouts tried so far, and the next ones to try."""

    def __init__(self) -> None:
        self._tried: set[frozenset[tuple[Place, Where]]] = {frozenset()}

    def after(
        self, choices: Mapping[Place, LayoutChoice], parameter: str | None
    ) -> dict[Place, Where] | None:
        """The next layouts, after a run that met ``choices`` and was wrong at ``parameter``.

        The last choice that has another option takes it, and the choices after it start afresh.
        When the run raised an error (no ``parameter``), any choice may be to blame; otherwise only
        those at the parameter. None when nothing is left to try.
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
