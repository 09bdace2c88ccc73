"""``PerSampleGradients``: per-record gradients as an object to compute with.

Nothing of size batch x parameters is built unless that is the fastest way for a layer and takes no
more memory than the captured activations.

Guarantee: ``norms`` never under-states. For every record, the norm of its share of ``sum`` with
weight one is at most its entry in ``norms`` (2e-6 relative): rounding is bounded and added, and
records whose sums cancel are computed again in float64.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from plumbline.gradients.compound import merge
from plumbline.gradients.norms import Norms, square_norms
from plumbline.gradients.rounding import unit_roundoff
from plumbline.gradients.summation import MANY, RecordSums, float64, has_float64
from plumbline.gradients.terms import Dense, Term

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
        self._norms: Norms | None = None
        self._buckets: Tensor | None = None
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
        found = self._found()
        if names is None:
            total = found.total
        else:
            total = torch.stack([found.squares[name] for name in names]).sum(0)
        # Includes the rounding of the sums of squares.
        return (total * (1 + 2 * _SUMMED * unit_roundoff(self.dtype))).sqrt_().to(self.dtype)

    def square_norms(self) -> dict[str, Tensor]:
        """Each record's squared norm by parameter, ``[B]`` float64 each, never under-stated."""
        return self._found().squares

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

    def to_release(self, buckets: Tensor | None = None) -> ToRelease:
        """The gradients as a clipping sees them: its sums are the ``total``.

        Args:
            buckets: ``[B]``, ascending, on the processor: the bucket of each record, by its own
                number alone, in which products may be added in float32 (``summation.py``). Whether
                they are given must not depend on the records, nor on how many there are.
        """
        return ToRelease(self, buckets)

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
            buckets = self._buckets
            if not bool(used.all()):
                index = used.nonzero()[:, 0]
                weights = weights[index]
                buckets = None if buckets is None else buckets[index.to(buckets.device)]
                terms = {name: term.select(index) for name, term in terms.items()}
            if has_float64(weights.device):
                weights = float64(weights)  # once for all
            many = sum(term.looped for term in terms.values()) >= MANY
            together = RecordSums(many, buckets)
            sums = {name: term.begin_sum(weights, together) for name, term in terms.items()}
            together.run()
            return {name: finish() for name, finish in sums.items()}

    def _like(self, name: str) -> Tensor:
        """An empty tensor of a parameter's type and device."""
        term = self._terms[name]
        return torch.empty(0, dtype=term.dtype, device=term.device)

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

    def _found(self) -> Norms:
        """The norms, computed once; that may replace terms by those that are released."""
        if self._norms is None:
            self._norms = square_norms(self._terms)
        return self._norms


class ToRelease(PerSampleGradients):
    """Gradients whose sums are to be released: in float64, with the rounding that is charged."""

    def __init__(self, gradients: PerSampleGradients, buckets: Tensor | None = None) -> None:
        norms = gradients._found()  # first: it may replace terms
        super().__init__(gradients._terms, gradients.records, gradients.losses)
        self._norms = norms
        self._buckets = buckets

    def sum(self, weights: Tensor | Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """``sum_i weights_i g_i`` by parameter name, in float64."""
        return self.total(weights)
