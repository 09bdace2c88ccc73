"""Lists the objects made during a run, without going through all that the process holds."""

from __future__ import annotations

import gc


class NewObjects:
    """Watches what is made from now on, until ``end``.

    The collector sets aside everything that is there (``gc.freeze``, which takes no time), so that
    it lists only what came later. Where something is set aside already, by the user's code or by
    another watch, it lists more: all objects that are not.
    """

    _watches = 0

    def __init__(self) -> None:
        gc.collect(1)  # young garbage would otherwise be set aside with the rest, and grow old
        self._froze = not NewObjects._watches and not gc.get_freeze_count()
        NewObjects._watches += 1
        if self._froze:
            gc.freeze()

    def end(self) -> list[object]:
        """All objects made since then that are still there; nothing is set aside any more."""
        found = gc.get_objects()
        NewObjects._watches -= 1
        if self._froze:
            gc.unfreeze()
        return found
