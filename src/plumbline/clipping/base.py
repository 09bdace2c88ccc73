"""What a clipping strategy is: a map from norms to factors that declares the bound it proves.

Guarantee asked of every strategy: whatever the records, adding or removing one moves
``sum_i factor_i g_i`` by at most ``sensitivity`` in L2 norm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class Clipping(ABC):
    """A strategy; it knows norms, never models."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """How far one record, added or removed, can move the sum. Public."""

    @abstractmethod
    def factors(self, norms: Tensor) -> Tensor:
        """The factor of each record, ``[B]``, from its norm, ``[B]``, finite and not negative."""

    def safe_factors(self, norms: Tensor, losses: Tensor) -> Tensor:
        """The factors, zero for a record whose norm or loss is not finite."""
        good = torch.isfinite(norms) & torch.isfinite(losses)
        if bool(good.all()):
            return self.factors(norms)
        return self.factors(norms.masked_fill(~good, 0)).masked_fill(~good, 0)

    def state_dict(self) -> dict[str, Any]:
        """What the strategy carries from step to step; empty for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state that ``state_dict`` gave."""
        if state:
            raise ValueError(
                f"{type(self).__name__} carries no state, but {sorted(state)} was stored."
            )
