"""How far one record moves what a run's own next steps would ask, before noise.

The run's real model, loss, data, collate function and method take a step on a few of its records,
and again with one of them removed, added or replaced: from the same state, with the same answers
and random numbers. No question's value may move by more than its declared sensitivity (twice that
for a replaced record), and whatever is not asked must be the same to the last bit. Nothing is
charged, released or left behind. It finds what is wrong, and proves nothing. Its figures are of raw
records and not covered by epsilon.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from plumbline.methods.tracing import StepTrace, flat, traced
from plumbline.training.batches import PrivateBatch
from plumbline.without_trace import no_trace

if TYPE_CHECKING:
    from plumbline.training.private import Private

Change = Literal["removed", "added", "replaced"]

ROUNDING = 1e-4
"""Relative: a record's own gradient is rounded otherwise in a batch of another size."""


@dataclass(frozen=True)
class NeighbourAudit:
    """What the comparison found.

    Attributes:
        pairs: How many pairs of neighbouring batches were compared.
        steps: At how many steps.
        records: How many records the batches had, about.
        farthest: The largest movement, as a share of what is declared for it.
        question: The question that moved so far.
        change: What was done to the record.
        differs: What differed that was not asked, or an empty text.
    """

    pairs: int
    steps: int
    records: int
    farthest: float
    question: str
    change: Change
    differs: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing moved by more than is declared, and nothing else differed."""
        return self.farthest <= 1 + ROUNDING and not self.differs

    @property
    def verdict(self) -> str:
        """What a statement may say: no figure, since figures of raw records are not covered."""
        tried = f"{self.pairs} pairs of neighbouring batches at {self.steps} steps were compared"
        if self.holds:
            return f"{tried}, and one record moved no answer by more than is declared."
        return f"{tried}, and ONE RECORD MOVED MORE THAN IS DECLARED: the guarantee does not hold."

    def __str__(self) -> str:
        found = (
            f"One record moved '{self.question}' by {self.farthest:.4g} of what is declared (when "
            f"it was {self.change}), the most of {self.pairs} pairs of neighbouring batches of "
            f"about {self.records} records at {self.steps} steps."
        )
        if self.differs:
            return f"{found} {self.differs} differed too, which leaves without noise."
        return found if self.holds else f"{found} The guarantee does not hold for this run."


def audit_neighbours(
    private: Private, *, steps: int = 3, records: int = 64, changes: int = 4, seed: int = 0
) -> NeighbourAudit:
    """Compares the run's next steps on neighbouring batches of its own records.

    Args:
        private: The run; it stays as it is.
        steps: How many of its next steps are tried.
        records: How many records (or users) a batch has.
        changes: How many records are removed, added and replaced at each step: those with the
            largest gradients, those with the most entries that are not zero, and random ones.
        seed: Which records are tried.

    Raises:
        ValueError: If the method keeps something of every record, or there are too few records.
    """
    if private.method.keeps_records:
        raise ValueError(
            f"The method '{private.method.name}' keeps something of every record and takes all of "
            "them in each step, so a batch of a few cannot be tried. `plumbline audit step` can."
        )
    records = min(records, private.units - 1)
    if records < 2:
        raise ValueError("There are fewer than three records; neighbours cannot be compared.")
    draw = torch.Generator().manual_seed(seed)
    pairs = 0
    farthest: tuple[float, str, Change] = (0.0, "", "removed")
    differs = ""
    with no_trace(private.model):
        for step in range(private.steps_done, private.steps_done + steps):
            order = torch.randperm(private.units, generator=draw)
            base, others = order[:records].sort().values, order[records:]
            answers = _Answers(draw)
            expected = _taken(private, step, base, answers)
            for change, neighbour in _neighbours(private, step, base, others, changes, draw):
                found = _taken(private, step, neighbour, answers)
                pairs += 1
                for place, (name, sensitivity, _) in enumerate(expected.asked):
                    allowed = sensitivity * (2 if change == "replaced" else 1)
                    moved = float((found.values[place] - expected.values[place]).norm())
                    if moved / allowed > farthest[0] or not farthest[1]:
                        farthest = (moved / allowed, name, change)
                differs = differs or _differs(expected, found)
    audit = NeighbourAudit(pairs, steps, records, *farthest, differs)
    private.audited = audit
    return audit


class _Answers:
    """The same answers for every batch of a step: the first one's values, with noise."""

    def __init__(self, draw: torch.Generator) -> None:
        self._draw = draw
        self._given: list[dict[str, Tensor]] = []

    def __call__(self, place: int, value: dict[str, Tensor], std: float) -> dict[str, Tensor]:
        if place == len(self._given):
            noisy = {
                name: torch.nan_to_num(one)
                + std * torch.randn(one.shape, generator=self._draw).to(one)
                for name, one in value.items()
            }
            self._given.append(noisy)
        return {name: one.clone() for name, one in self._given[place].items()}


def _differs(expected: StepTrace, found: StepTrace) -> str:
    """The first thing that was not asked and is not the same, in words."""
    if expected.asked != found.asked:
        return "The questions themselves"
    others = (n for n, value in expected.left.items() if not torch.equal(value, found.left[n]))
    return next(others, "")


def _taken(private: Private, step: int, units: Tensor, answers: _Answers) -> StepTrace:
    indices, groups = private.records_of(units)
    method = copy.deepcopy(private.method)
    program = method.step(PrivateBatch(step, indices, units, private, groups))
    trace, update = traced(program, answers)
    trace.left["The update"] = flat(update)
    for name, held in private.model.state_dict().items():
        trace.left[f"The model's '{name}'"] = held.detach().clone()
    for name, held in method.state_dict().items():
        if isinstance(held, Tensor):
            trace.left[f"The method's '{name}'"] = held.detach().clone()
    return trace


def _neighbours(
    private: Private, step: int, base: Tensor, others: Tensor, changes: int, draw: torch.Generator
) -> Iterator[tuple[Change, Tensor]]:
    """Batches that differ from ``base`` by one record."""
    place = torch.randperm(len(base), generator=draw)[:changes].tolist()
    for extreme in _extremes(private, step, base):
        place.insert(0, extreme)
    for nth, at in enumerate(dict.fromkeys(place)):
        rest = torch.cat([base[:at], base[at + 1 :]])
        yield "removed", rest
        if nth < len(others):
            yield "added", torch.cat([base, others[nth : nth + 1]]).sort().values
            yield "replaced", torch.cat([rest, others[nth : nth + 1]]).sort().values


def _extremes(private: Private, step: int, base: Tensor) -> list[int]:
    """The places of the records with the largest gradient, and with the most that is not zero."""
    norms, sizes = [], []
    for unit in base[:, None]:
        indices, groups = private.records_of(unit)
        (chunk,) = PrivateBatch(step, indices, unit, private, groups).chunks()
        norms.append(float(chunk.capture().norms()[0]))
        sizes.append(
            sum(
                int((leaf != 0).sum())
                for leaf in torch.utils._pytree.tree_leaves(chunk.data)
                if isinstance(leaf, Tensor)
            )
        )
    return [int(torch.tensor(values).nan_to_num(posinf=0.0).argmax()) for values in (sizes, norms)]
