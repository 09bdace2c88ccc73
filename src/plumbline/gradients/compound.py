"""Terms built on terms: tied weights, parametrisations, recomputed records.

``Mixed`` adds terms of different kinds on one parameter, ``Pulled`` carries gradients through a
parametrisation (weight standardisation, weight norm), and ``Patched`` replaces the gradients of
records whose sums cancel with exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from plumbline.gradients.kernels import Key
from plumbline.gradients.rounding import ROUNDINGS, SUM_ROUNDINGS, running_slack, unit_roundoff
from plumbline.gradients.summation import FEW, float64, ranges
from plumbline.gradients.terms import Dense, Term


class Compound(Term):
    """A term built on others; it works with their dense gradients."""

    parts: Sequence[Term]

    def select(self, index: Tensor) -> Term:
        return Dense(self.all()[index])

    def scaled(self, coefficients: Tensor) -> Term:
        return Dense(self.all()).scaled(coefficients)

    def joined(self, others: Sequence[Term]) -> Term:
        return Dense(self.all()).joined(others)

    def pooled(self, index: Tensor, groups: int) -> Term:
        return Dense(self.all()).pooled(index, groups)

    def slack(self) -> Tensor | None:
        return _added([self._between(), *(part.slack() for part in self.parts)])

    def sum_slack(self) -> Tensor | None:
        between = self._between()
        between = None if between is None else running_slack(between, self.positions)
        return _added([between, *(part.sum_slack() for part in self.parts)])

    def _between(self) -> Tensor | None:
        """A bound ``[B]`` on the rounding of adding up the parts, if they can cancel."""
        return None

    @property
    def positions(self) -> int:
        return max(part.positions for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def key(self) -> Key:
        return (type(self).__name__, tuple(self.shape), *(part.key for part in self.parts))

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].device


class Mixed(Compound):
    """The sum of terms of different kinds on one parameter: tied weights, cross terms included."""

    def __init__(self, parts: Sequence[Term]) -> None:
        self.parts = parts
        self.records = parts[0].records
        self.shape = parts[0].shape

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        total = torch.stack([part.dense(start, stop) for part in self.parts]).sum(0)
        return total if out is None else out.copy_(total)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if any(isinstance(part, Compound) for part in self.parts):
            return super().weighted_sum(weights)
        # The parts can cancel: added up a few records at a time, sums stay as small as norms say.
        total = float64(weights.new_zeros(self.shape))
        for start, stop in ranges(0, self.records, FEW):
            index = torch.arange(start, stop, device=self.device)
            few = [part.select(index).weighted_sum(weights[index]) for part in self.parts]
            total += torch.stack(few).sum(0)
        return total

    def dot(self, direction: Tensor) -> Tensor:
        return torch.stack([part.dot(direction) for part in self.parts]).sum(0)

    def select(self, index: Tensor) -> Mixed:
        return Mixed([part.select(index) for part in self.parts])

    def scaled(self, coefficients: Tensor) -> Mixed:
        return Mixed([part.scaled(coefficients) for part in self.parts])

    def pooled(self, index: Tensor, groups: int) -> Mixed:
        return Mixed([part.pooled(index, groups) for part in self.parts])

    def _between(self) -> Tensor:
        # The parts can cancel: the rounding of each counts, however exact its own sum.
        total = torch.stack([part.sizes().double() for part in self.parts]).sum(0)
        return total * (ROUNDINGS * unit_roundoff(self.dtype))

    def double(self) -> Mixed | None:
        parts = [double for part in self.parts if (double := part.double()) is not None]
        return Mixed(parts) if len(parts) == len(self.parts) else None

    def rows(self, index: Tensor) -> Tensor:
        return torch.stack([part.rows(index) for part in self.parts]).sum(0)


class Pulled(Compound):
    """Gradients of a parametrisation's original, from those of the weight it computes.

    ``pull`` maps ``[N, *made]`` gradients of the computed weight to ``[N, *shape]`` of the
    original. It is linear, but a sum is not pulled as one: a record would enter it with the size of
    its gradient before the pull, however little of it the parametrisation lets through (a
    standardised weight removes the mean), and what it moves would be rounded at that size.
    """

    def __init__(self, made: Term, shape: torch.Size, pull: Callable[[Tensor], Tensor]) -> None:
        self.parts = [made]
        self.records = made.records
        self.shape = shape
        self._pull = pull

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        pulled = self._pull(self.parts[0].dense(start, stop))
        return pulled if out is None else out.copy_(pulled)

    def select(self, index: Tensor) -> Term:
        if len(index) > self.records:
            return Dense(self.all()[index])  # several views of a record: pull it only once
        return Pulled(self.parts[0].select(index), self.shape, self._pull)

    def slack(self) -> Tensor | None:
        return None  # the rows that are kept are the ones released

    def sum_slack(self) -> Tensor | None:
        entered = self.sizes() * (SUM_ROUNDINGS * unit_roundoff(self.dtype))
        within = self.parts[0].sum_slack()
        return _added([entered, None if within is None else within * self._gain])

    def sizes(self) -> Tensor:
        return self.parts[0].sizes().double() * self._gain

    def double(self) -> Dense | None:
        # Exact until it is pulled; the parametrisation itself runs in the parameters' precision.
        made = self.parts[0].double()
        return None if made is None else Dense(Pulled(made, self.shape, self._pull).all().double())

    @cached_property
    def _gain(self) -> float:
        """How much the parametrisation stretches a rounding error of random direction."""
        shape, generator = self.parts[0].shape, torch.Generator(self.device).manual_seed(0)
        error = torch.randn(1, *shape, generator=generator, dtype=self.dtype, device=self.device)
        return float(self._pull(error).norm() / error.norm())


class Patched(Compound):
    """A term with exact, recomputed gradients for some records.

    The sums of these records cancel: evaluating them again in float32 would add up rounding.
    """

    def __init__(self, term: Term, index: Tensor, exact: Dense) -> None:
        self.parts = [term, exact]
        self.records, self.shape = term.records, term.shape
        self._index = index

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        term, exact = self.parts
        rows = term.dense(start, stop, out)
        here = (self._index >= start) & (self._index < stop)
        rows[self._index[here] - start] = exact.all()[here]
        return rows

    def weighted_sum(self, weights: Tensor) -> Tensor:
        term, exact = self.parts
        others = weights.index_fill(0, self._index, 0)
        return term.weighted_sum(others) + exact.weighted_sum(weights[self._index])

    def select(self, index: Tensor) -> Patched:
        term, exact = self.parts
        place = torch.full((self.records,), -1, device=index.device)
        place[self._index] = torch.arange(len(self._index), device=index.device)
        kept = (place[index] >= 0).nonzero()[:, 0]
        patches = exact.select(place[index][kept])
        assert isinstance(patches, Dense)
        return Patched(term.select(index), kept, patches)

    def sum_slack(self) -> Tensor | None:
        slack = self.parts[0].sum_slack()
        return None if slack is None else slack.index_fill(0, self._index, 0)

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        return {"stream": self.streamed_square_norms}


def _added(slacks: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of the bounds that exist; None if there are none."""
    known = [slack for slack in slacks if slack is not None]
    return torch.stack(known).sum(0) if known else None


def merge(terms: Sequence[Term]) -> Term:
    """One term for all uses of a parameter in a capture."""
    first, *others = terms
    if not others:
        return first
    if all(type(other) is type(first) for other in others):
        return first.joined(others)
    return Mixed(terms)
