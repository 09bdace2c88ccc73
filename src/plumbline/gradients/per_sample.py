"""``PerSampleGradients``: per-record gradients as an object to compute with.

Nothing of size batch x parameters is built unless that is the fastest way for a layer and takes no
more memory than the captured activations.

Guarantee: ``norms`` never under-states. For every record, the norm of its share of ``sum`` with
weight one is at most its entry in ``norms`` (2e-6 relative): rounding is bounded and added, and
records whose sums cancel are computed again in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from plumbline.gradients.compound import Patched, merge
from plumbline.gradients.kernels import KERNELS
from plumbline.gradients.rounding import square_rows, unit_roundoff
from plumbline.gradients.terms import Dense, Term

_CANCELLED = 5e-5
"""Above this relative bound on its rounding, a record's norm is computed again in float64."""

_RELEASED = 1e-3
"""The same where gradients are not kept: a norm is over-stated by at most this."""

_TINY = 1e-15
"""Norms below this may have lost terms whose squares vanish in float32."""

_SUMMED = 16
"""Unit roundoffs added to every norm, for the rounding of its sum of squares."""


class PerSampleGradients:
    """The gradients ``g_1 .. g_B`` of a batch's records, by parameter name.

    Attributes:
        records: The number of records, B.
        losses: Each record's loss, ``[B]``, detached.
    """

    def __init__(self, terms: Mapping[str, Term], records: int, losses: Tensor) -> None:
        self._terms = dict(terms)
        self._squares: dict[str, Tensor] | None = None
        self.records = records
        self.losses = losses

    @classmethod
    def of(cls, values: Mapping[str, Tensor], losses: Tensor) -> PerSampleGradients:
        """Dense gradients ``[B, *shape]`` by parameter name, with the records' losses ``[B]``."""
        return cls({name: Dense(value) for name, value in values.items()}, len(losses), losses)

    @classmethod
    def stacked(cls, parts: Sequence[PerSampleGradients]) -> PerSampleGradients:
        """The records of several batches one after the other; builds their dense gradients."""
        dense = [part.materialise() for part in parts]
        values = {name: torch.cat([one[name] for one in dense]) for name in parts[0].names}
        return cls.of(values, torch.cat([part.losses for part in parts]))

    @property
    def dtype(self) -> torch.dtype:
        """The gradients' floating-point type."""
        return next(iter(self._terms.values())).dtype

    @property
    def names(self) -> list[str]:
        """The parameters' names, in the model's order."""
        return list(self._terms)

    def norms(self, names: Collection[str] | None = None) -> Tensor:
        """Each record's L2 norm, ``[B]``, never under-stated: over all parameters, or ``names``."""
        squares = self.square_norms()
        parts = list(squares.values()) if names is None else [squares[name] for name in names]
        # Includes the rounding of the sums of squares.
        total = torch.stack(parts).sum(0) * (1 + 2 * _SUMMED * unit_roundoff(self.dtype))
        return total.sqrt().to(self.dtype)

    def square_norms(self) -> dict[str, Tensor]:
        """Each record's squared norm by parameter, ``[B]`` float64 each, never under-stated."""
        if self._squares is None:
            with torch.no_grad():
                keep = self.keepable()
                self._squares = {name: self._square(name, name in keep) for name in self._terms}
                self._recompute_tiny()
        return self._squares

    def sum(self, weights: Tensor | Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """``sum_i weights_i g_i`` by parameter name, rounded to the gradients' type at the end.

        A record with weight zero takes no part, even when its gradient is not finite.

        Args:
            weights: ``[B]``, for all parameters or for each by name; ones by default.
        """
        sums = self.total(weights)
        return {name: value.to(self._like(name)) for name, value in sums.items()}

    def total(self, weights: Tensor | Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The same in float64, with the rounding that ``summation.py`` bounds: to be released.

        Args:
            weights: ``[B]``, for all parameters or for each by name; ones by default.
        """
        if weights is None:
            weights = torch.ones(self.records, dtype=self.dtype, device=self.losses.device)
        if isinstance(weights, Tensor):
            return self._total(weights, self._terms)
        return {
            name: self._total(own, {name: self._terms[name]})[name] for name, own in weights.items()
        }

    def to_release(self) -> ToRelease:
        """The gradients as a clipping sees them: its sums are the ``total``."""
        return ToRelease(self)

    def dot(self, direction: Mapping[str, Tensor]) -> Tensor:
        """``<g_i, direction>`` for every record, ``[B]``; missing names count as zero."""
        unknown = set(direction) - set(self._terms)
        if unknown:
            raise KeyError(
                f"dot got {sorted(unknown)[0]!r}, which is not a captured parameter; the captured "
                f"ones are {', '.join(self.names[:5])}{' ...' if len(self.names) > 5 else ''}."
            )
        for name, value in direction.items():
            if value.shape != self._terms[name].shape:
                raise ValueError(
                    f"dot got a direction for '{name}' of shape {tuple(value.shape)}; the "
                    f"parameter has shape {tuple(self._terms[name].shape)}."
                )
        with torch.no_grad():
            parts = [self._terms[name].dot(value) for name, value in direction.items()]
            return torch.stack(parts).sum(0) if parts else self.losses.new_zeros(self.records)

    def materialise(self) -> dict[str, Tensor]:
        """The dense gradients by parameter name, ``[B, *shape]``, for diagnostics and tests."""
        with torch.no_grad():
            return {name: term.all() for name, term in self._terms.items()}

    def select(self, index: Tensor) -> PerSampleGradients:
        """The gradients of records ``index``, in that order, repeats allowed."""
        with torch.no_grad():
            terms = {name: term.select(index) for name, term in self._terms.items()}
            return PerSampleGradients(terms, len(index), self.losses[index])

    def pool(self, index: Tensor, groups: int | None = None) -> PerSampleGradients:
        """The sums of the records with the same ``index`` (``[B]``, from 0), as records.

        For several views of a record, buckets of records, and users. The losses are the sums of
        the records' losses.
        """
        if index.shape != (self.records,):
            raise ValueError(
                f"pool takes one group per record: expected shape ({self.records},), got "
                f"{tuple(index.shape)}."
            )
        if groups is None:
            groups = int(index.max()) + 1 if self.records else 0
        if self.records and not 0 <= int(index.min()) <= int(index.max()) < groups:
            raise ValueError(
                f"pool got groups from {int(index.min())} to {int(index.max())}; they are "
                f"numbered from 0 to {groups - 1}."
            )
        with torch.no_grad():
            terms = {name: term.pooled(index, groups) for name, term in self._terms.items()}
            losses = self.losses.new_zeros(groups).index_add_(0, index, self.losses)
            return PerSampleGradients(terms, groups, losses)

    @staticmethod
    def combine(
        parts: Sequence[PerSampleGradients], coefficients: Sequence[float | Tensor]
    ) -> PerSampleGradients:
        """``sum_k coefficients_k g_i^(k)``: captures of the same records, added record by record.

        Each coefficient is a number or one number per record, ``[B]``. The losses are the first
        part's.
        """
        if len(parts) != len(coefficients) or not parts:
            raise ValueError(
                f"combine takes one coefficient per part: got {len(parts)} parts and "
                f"{len(coefficients)} coefficients."
            )
        first = parts[0]
        for part in parts[1:]:
            if part.records != first.records or part.names != first.names:
                raise ValueError(
                    "combine takes captures of the same records and parameters: got "
                    f"{first.records} and {part.records} records, {len(first.names)} and "
                    f"{len(part.names)} parameters."
                )
        with torch.no_grad():
            scaled = [
                part._scaled(coefficient)
                for part, coefficient in zip(parts, coefficients, strict=True)
            ]
            terms = {name: merge([part[name] for part in scaled]) for name in first.names}
            return PerSampleGradients(terms, first.records, first.losses)

    def term(self, name: str) -> Term:
        """One parameter's gradients, in the form in which they are stored."""
        return self._terms[name]

    def _total(self, weights: Tensor, terms: Mapping[str, Term]) -> dict[str, Tensor]:
        if weights.shape != (self.records,):
            raise ValueError(
                f"sum takes one weight per record: expected shape ({self.records},), got "
                f"{tuple(weights.shape)}."
            )
        with torch.no_grad():
            weights = weights.to(self.losses.device)
            used = weights != 0
            if not bool(used.all()):
                index = used.nonzero()[:, 0]
                weights = weights[index]
                terms = {name: term.select(index) for name, term in terms.items()}
            return {name: term.weighted_sum(weights) for name, term in terms.items()}

    def _like(self, name: str) -> Tensor:
        """An empty tensor of a parameter's type and device."""
        term = self._terms[name]
        return torch.empty(0, dtype=term.dtype, device=term.device)

    def _recompute_tiny(self) -> None:
        """In float64 where squares may have vanished in float32: only normalising notices."""
        assert self._squares is not None
        total = torch.stack(list(self._squares.values())).sum(0)
        tiny = total < _TINY**2
        if bool(tiny.any()):
            index = tiny.nonzero()[:, 0]
            for name, term in self._terms.items():
                exact = term.select(index).double()
                if exact is not None:
                    self._squares[name][index] = exact.streamed_square_norms()

    def _scaled(self, coefficient: float | Tensor) -> dict[str, Term]:
        if isinstance(coefficient, int | float) and coefficient == 1:
            return self._terms
        values = torch.as_tensor(coefficient, dtype=self.dtype, device=self.losses.device)
        if values.dim() and values.shape != (self.records,):
            raise ValueError(
                f"A coefficient is a number or one number per record, shape ({self.records},); got "
                f"shape {tuple(values.shape)}."
            )
        values = values.expand(self.records)
        return {name: term.scaled(values) for name, term in self._terms.items()}

    def keepable(self) -> set[str]:
        """The parameters whose dense gradients may be kept, smallest relative to inputs first.

        Together they may take as much memory as the captured inputs and gradients.
        """
        terms = {name: term for name, term in self._terms.items() if term.keepable}
        room = sum(term.nbytes for term in terms.values())
        keep: set[str] = set()
        for name in sorted(terms, key=lambda n: terms[n].dense_nbytes / max(1, terms[n].nbytes)):
            room -= terms[name].dense_nbytes
            if room < 0:
                break
            keep.add(name)
        return keep

    def _square(self, name: str, may_keep: bool) -> Tensor:
        term = self._terms[name]
        kernels: dict[str, Callable[[], tuple[Tensor, Term]]] = {
            kernel: partial(_not_kept, run, term) for kernel, run in term.norm_kernels().items()
        }
        if may_keep:
            kernels = {"keep": partial(_kept, term), **kernels}
        if len(kernels) > 1 and term.records > 0:
            ones = torch.ones(term.records, dtype=term.dtype, device=term.device)
            squares, held = KERNELS.run(
                ("norms", *term.key, may_keep), kernels, finish=lambda r: r[1].weighted_sum(ones)
            )
        else:
            squares, held = next(iter(kernels.values()))()
        squares, held = _guarded(squares, term, held)
        self._terms[name] = held
        return squares


class ToRelease(PerSampleGradients):
    """Gradients whose sums are to be released: in float64, with the rounding that is charged."""

    def __init__(self, gradients: PerSampleGradients) -> None:
        squares = gradients.square_norms()  # may replace terms by those that are released
        super().__init__(gradients._terms, gradients.records, gradients.losses)
        self._squares = squares

    def sum(self, weights: Tensor | Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """``sum_i weights_i g_i`` by parameter name, in float64."""
        return self.total(weights)


def _not_kept(norms: Callable[[], Tensor], term: Term) -> tuple[Tensor, Term]:
    return norms(), term


def _kept(term: Term) -> tuple[Tensor, Term]:
    values = torch.empty((term.records, *term.shape), dtype=term.dtype, device=term.device)
    squares = []
    for start, stop in term.chunks():
        rows = term.dense(start, stop, out=values[start:stop])
        squares.append(square_rows(rows))
        if rows.data_ptr() != values[start:stop].data_ptr():
            values[start:stop] = rows
    return torch.cat(squares) if squares else square_rows(values), Dense(values)


def _guarded(squares: Tensor, term: Term, held: Term) -> tuple[Tensor, Term]:
    """The squared norms with their rounding added; cancelled records are computed again exactly.

    Kept gradients are the ones released, so only their distance from the truth matters. Gradients
    that are computed again for the sum may round differently, and every time in the same direction.
    """
    kept = isinstance(held, Dense)
    slack = term.slack() if kept else term.sum_slack()
    if slack is None:
        return squares, held
    norms = squares.sqrt()
    cancelled = slack > (_CANCELLED if kept else _RELEASED) * norms
    if bool(cancelled.any()):
        index = (cancelled & torch.isfinite(slack) & (slack > 0)).nonzero()[:, 0]
        exact = term.select(index).double() if held is not term or not kept else None
        if exact is not None and len(index):
            norms[index] = exact.streamed_square_norms().sqrt()
            slack = slack.index_fill(0, index, 0)
            rows = exact.dense(0, len(index)).to(term.dtype)
            if isinstance(held, Dense):
                held.values[index] = rows
            else:
                held = Patched(held, index, Dense(rows))
    return (norms + slack).square(), held
