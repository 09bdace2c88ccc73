"""A clip bound for each group (DPSGD-F: Xu et al., 2021; Gradient Misalignment, Alg. 3).

Groups whose gradients are long get a larger bound. Before the gradients are scaled, one question
asks for each group how many norms are above C and how many are not: a record changes one of these
counts by one, so the question has sensitivity 1. Its noise is ``10 sigma``, as in the released
code; Alg. 3 would have the gradient noise scale with C alone, but the sum moves by the largest C_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from plumbline.checks import check_positive
from plumbline.clipping.base import Clipping, RecordNorms, clipping
from plumbline.clipping.flat import flat_factors
from plumbline.clipping.quantile import count_query, declared_count
from plumbline.mechanism.release import GaussianQuery, Program

_NAME = "group counts"


@clipping
@dataclass
class PerGroup(Clipping):
    """Factor ``min(1, C_k / n_i)`` for a record of group k. Sensitivity: the largest C_k.

    Attributes:
        clip: The base bound C.
        groups: The values that ``sensitive_features`` may have: declared, never read from the data.
        count_ratio: The counts' noise, as a multiple of the gradient's noise multiplier.
        form: ``"released"`` for ``C_k = C (1 + r_k / mean_k r_k)``, as in the authors' code, or
            ``"paper"`` for ``C (1 + r_k / (m / b))``, at most ``C (1 + K)``; r_k is the share of
            group k's records above C, m / b that of all records.
    """

    clip: float = 1.0
    groups: Sequence[int] = (0, 1)
    count_ratio: float = 10.0
    form: Literal["released", "paper"] = "released"
    bounds: list[float] = field(init=False)

    needs_groups = True
    state = ("bounds",)
    keeps = "the groups' bounds"

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_positive("count_ratio", self.count_ratio)
        self.groups = tuple(self.groups)
        if not self.groups or len(set(self.groups)) != len(self.groups):
            raise ValueError(f"groups is {self.groups}; give each group's value once.")
        if self.form not in ("released", "paper"):
            raise ValueError(f"form is {self.form!r}; it must be 'released' or 'paper'.")
        self.bounds = [float(self.clip)] * len(self.groups)

    @property
    def sensitivity(self) -> float:
        return max(self.bounds)

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        bounds = torch.tensor(self.bounds, dtype=norms.dtype, device=norms.device)
        return flat_factors(norms, bounds[self._places(groups).to(norms.device)])

    def before(self, records: RecordNorms) -> Program[None]:
        places = self._places(records.groups)
        above = (records.norms > self.clip).long().to(places.device)
        counts = torch.bincount(2 * places + 1 - above, minlength=2 * len(self.groups))
        noise = self.count_ratio * records.noise_multiplier
        noisy = yield count_query(_NAME, counts.double().cpu(), noise, records.noise_multiplier)
        over, rest = noisy["value"].floor().clamp(min=0).view(-1, 2).unbind(1)
        self.bounds = self._adapted(over, rest)

    def queries_before(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        return (declared_count(_NAME, self.count_ratio * noise_multiplier, noise_multiplier),)

    def _adapted(self, over: Tensor, rest: Tensor) -> list[float]:
        """The groups' bounds from their noisy counts, ``[K]`` each."""
        size = over + rest
        shares = torch.where(size > 0, over / size.clamp(min=1), 1.0)
        overall = over.sum() / size.sum().clamp(min=1)
        usual = shares.mean() if self.form == "released" else overall
        # A share of zero is no reason for a larger bound, whatever the usual one is.
        ratios = (shares / usual).nan_to_num(0).clamp(max=len(shares))
        bounds: list[float] = (self.clip * (1 + ratios)).tolist()
        return bounds

    def _places(self, groups: Tensor | None) -> Tensor:
        """Each record's place among the declared groups, ``[N]``."""
        if groups is None:
            raise ValueError(
                "Per-group clipping needs the group of each record: give sensitive_features to "
                "make_private."
            )
        declared = torch.tensor(self.groups, device=groups.device)
        hits = groups[:, None] == declared
        if not bool(hits.any(1).all()):
            raise ValueError(
                "sensitive_features has a value that is not one of the declared groups "
                f"{list(self.groups)}. Declare every value that a record can have: groups=(...)."
            )
        return hits.long().argmax(1)
