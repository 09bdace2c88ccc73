"""What a clipping strategy is: a map from norms to factors that declares the bound it proves.

Guarantee asked of every strategy: whatever the records, adding or removing one moves
``sum_i factor_i g_i`` by at most ``sensitivity`` in L2 norm, and moves what is asked besides (a
count) by at most that question's own sensitivity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from plumbline.mechanism.release import GaussianQuery, Program
from plumbline.registry import Registry
from plumbline.results import Undefined
from plumbline.spaces import Space
from plumbline.state import Stateful


class Gradients(Protocol):
    """What a strategy needs of the gradients of some records."""

    @property
    def names(self) -> list[str]:
        """The parameters' names."""

    def norms(self, names: Collection[str] | None = None) -> Tensor:
        """Each record's norm, over all parameters or some, ``[B]``, never under-stated."""

    def sum(self, weights: Tensor | Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """``sum_i weights_i g_i`` by parameter name, with weights ``[B]`` for all or by name."""


class RecordNorms(Protocol):
    """What a strategy may know of a batch's records when it asks a question of its own."""

    @property
    def norms(self) -> Tensor:
        """Each record's norm, ``[N]``; zero for a record that is not finite."""

    @property
    def groups(self) -> Tensor | None:
        """Each record's group, ``[N]``, if groups were given."""

    @property
    def noise_multiplier(self) -> float:
        """That of the gradient query."""

    @property
    def expected_size(self) -> int:
        """The public constant L."""


class Clipping(Stateful, ABC):
    """A strategy; it knows norms and groups, never models.

    Attributes:
        needs_groups: Whether it needs ``sensitive_features``.
        together: Whether the records of a bucket share batch statistics (``buckets``).
        search: Where its settings are searched when a method is tuned.
    """

    needs_groups: ClassVar[bool] = False
    together: ClassVar[bool] = False
    search: ClassVar[Mapping[str, Space]] = {}

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """How far one record, added or removed, can move the sum. Public."""

    @property
    def constant(self) -> bool:
        """Whether ``sensitivity`` stays the same along a run, as correlated noise needs."""
        return not self.state

    @abstractmethod
    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        """The factor of each record, ``[B]``, from its norm, ``[B]``, finite and not negative."""

    def clipped_sum(
        self, gradients: Gradients, norms: Tensor, finite: Tensor, groups: Tensor | None
    ) -> dict[str, Tensor]:
        """``sum_i factor_i g_i`` by parameter name, records that are not ``finite`` left out."""
        return gradients.sum(self.factors(norms, groups).masked_fill(~finite, 0))

    @property
    def threshold(self) -> float | None:
        """The norm up to which all records are scaled alike; None where there is no such norm."""
        return None

    def is_clipped(
        self, gradients: Gradients, norms: Tensor, groups: Tensor | None = None
    ) -> Tensor | Undefined:
        """Which records are scaled down further than a short one would be, ``[B]`` bool."""
        most = self.factors(torch.zeros_like(norms), groups)
        return below(self.factors(norms, groups), most)

    def normaliser(self, expected_size: int) -> float:
        """The public constant by which the sum is divided."""
        return expected_size

    def buckets(self, expected_size: int) -> int | None:
        """How many buckets records are pooled in before they are clipped; None for none."""
        return None

    def before(self, records: RecordNorms) -> Program[None]:
        """Asks what it must know before it can scale the records of this batch."""
        yield from ()

    def after(self, records: RecordNorms) -> Program[None]:
        """Asks what it must know to adapt for the next step."""
        yield from ()

    def queries_before(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        """The questions of ``before``, declared."""
        return ()

    def queries_after(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        """The questions of ``after``, declared."""
        return ()


CLIPPINGS: Registry[type[Clipping]] = Registry("clipping")
"""Every clipping by name. The contract tests, recipes and the command line find them here."""

Kind = TypeVar("Kind", bound=Clipping)


def clipping(kind: type[Kind]) -> type[Kind]:
    """Registers a clipping under the name of its class."""
    CLIPPINGS.add(kind.__name__, kind)
    return kind


def below(factors: Tensor, most: Tensor | float) -> Tensor:
    """Which factors are less than ``most`` by more than the rounding that norms carry, ``[B]``."""
    return factors < most * (1 - 32 * torch.finfo(factors.dtype).eps)
