"""One part of an experiment's runs, for a job array: ``--shard 3/16``.

Which runs are in a part follows from the experiment alone: of a comparison every 16th run, of a
search whole rows, since the trials of a row build on each other. Runs have folders of their own,
named by what they are, so the parts need nothing of each other: they may share a disk, or their
folders are copied together afterwards. The same command without the option reads what the parts
made and makes what is missing; who made a run does not change its result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from plumbline.experiments.charging import Named
from plumbline.experiments.pool import OnProgress, Workers
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_result import RunResult, read_result
from plumbline.experiments.run_spec import RunSpec


class PartMade(Exception):
    """A part is made, and the others may not be: there is no result yet. Says how to go on."""


class Shard(NamedTuple):
    """A part of the runs.

    Attributes:
        number: Which, from 1 on.
        of: Of how many.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The part that ``3/16`` names.

        Raises:
            RecipeError: If it names none.
        """
        found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise RecipeError(
                f"--shard is {text!r}; give the part and how many there are, from 1/16 to 16/16."
            )
        return cls(int(found[1]), int(found[2]))

    def has(self, place: int) -> bool:
        """Whether the run (or the row) at a place of the list is in this part."""
        return place % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class ShardWorkers(Workers):
    """Processes that make the runs of one part."""

    def __init__(self, shard: Shard, workers: int | None = None) -> None:
        super().__init__(workers)
        self.shard = shard

    def run(
        self,
        specs: Sequence[RunSpec],
        root: Path,
        on_progress: OnProgress | None = None,
        ledger: Named = None,
    ) -> list[RunResult]:
        """Makes the part's runs, and ends with `PartMade`."""
        mine = [spec for place, spec in enumerate(specs) if self.shard.has(place)]
        super().run(mine, root, on_progress, ledger)
        raise PartMade(
            f"Part {self.shard} is made: {len(mine)} of {len(specs)} runs, in {root}. When every "
            "part is, give the same command without --shard: it reads what they made."
        )

    def of_row(self, place: int) -> Workers:
        """Those that make all trials of a row if it is in this part, and else only read them."""
        return _Row(self, self.shard.has(place))


class _Row(Workers):
    def __init__(self, whole: ShardWorkers, mine: bool) -> None:
        self._whole, self._mine = whole, mine

    def run(
        self,
        specs: Sequence[RunSpec],
        root: Path,
        on_progress: OnProgress | None = None,
        ledger: Named = None,
    ) -> list[RunResult]:
        if not self._mine and any(read_result(root / spec.folder) is None for spec in specs):
            raise PartMade(
                f"Part {self._whole.shard} of the search is made, in {root}. When every part is, "
                "give the same command without --shard: it reads what they made and goes on."
            )
        return Workers.run(self._whole, specs, root, on_progress, ledger)
