"""Public data beside the private: a separate stream, which costs no privacy and gets none.

At every step the plain mean gradient of a public batch, times a weight, is added to the noisy
private gradient before the optimizer sees it. It depends on the weights and on public records only,
so the guarantee for the private records is untouched (post-processing). The public records have no
protection at all, and the statement says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.checks import check_count
from plumbline.mechanism.random_source import RandomSource
from plumbline.sampling import FixedSampler
from plumbline.training.distributed import Ranks
from plumbline.training.losses import BatchLoss, Loss, applied
from plumbline.training.records import Collate, Records, records_of, to_device
from plumbline.training.stacking import PadTo


@dataclass(frozen=True, eq=False)
class PublicData:
    """Records that need no protection, to train on beside the private ones.

    Attributes:
        dataset: Of any kind that ``make_private`` takes.
        batch_size: How many of them enter a step; they come in shuffled epochs.
        weight: What their mean gradient is multiplied by; the private one has weight 1.
        loss: As for ``make_private``, but it may reduce over the batch; by default the private one.
        collate: As for ``make_private``: how a list of one record becomes a batch of one.
        pad_to: As for ``make_private``.
    """

    dataset: Any
    batch_size: int
    weight: float = 1.0
    loss: Loss | None = None
    collate: Collate | None = None
    pad_to: PadTo | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if not math.isfinite(self.weight):
            raise ValueError(
                f"weight is {self.weight}; it must be a finite number. The private gradient has "
                "weight 1; give 0 to leave the public data out."
            )

    @cached_property
    def records(self) -> Records:
        """The records, by number."""
        return records_of(self.dataset, self.collate, self.pad_to)

    @property
    def facts(self) -> dict[str, int | float]:
        """The settings that must be the same when a run goes on, by name."""
        return {
            "public.records": len(self.records),
            "public.batch_size": self.batch_size,
            "public.weight": self.weight,
        }


class PublicStream:
    """The public gradient of each step of a run.

    Args:
        data: What the user gave.
        loss: The private loss, for public data without one of its own.
        source: The run's randomness; its streams ``"public"`` shuffle.
    """

    def __init__(self, data: PublicData, loss: BatchLoss, source: RandomSource) -> None:
        self.weight = data.weight
        self._loss = loss if data.loss is None else applied(data.loss)
        self._records = data.records
        self._source = source
        self._sampler = FixedSampler(
            len(self._records), min(data.batch_size, len(self._records)), source, domain="public"
        )

    @property
    def not_covered(self) -> str:
        """The item for the statement."""
        return (
            f"the public data: {len(self._records):,} further records, "
            f"{self._sampler.batch_size:,} of them in each step, whose gradients (with weight "
            f"{self.weight:g}) enter the training without clipping or noise; nothing about them is "
            "protected, and they must not be about the people who are"
        )

    def indices(self, step: int) -> Tensor:
        """The public records of a step, ``[batch_size]``; a function of the source and the step."""
        return self._sampler.indices(step)

    def gradient(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], step: int, ranks: Ranks
    ) -> dict[str, Tensor]:
        """The weighted mean gradient of a step's public batch, by parameter, on all ranks.

        The first rank computes it: dropout would differ from rank to rank.
        """
        found = {name: torch.zeros_like(p) for name, p in parameters.items()}
        if ranks.first:
            found = self._gradient(model, parameters, step)
        ranks.take_from_first(f"the public gradient of step {step}", found.values())
        return found

    def _gradient(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], step: int
    ) -> dict[str, Tensor]:
        """This rank's own; ``.grad`` stays as it is.

        A batch whose gradient is not finite is left out, with a warning.
        """
        device = next(iter(parameters.values())).device
        key = self._source.stream("public records", step).bytes(16).hex()
        data = to_device(self._records.fetch(self.indices(step), key), device)
        with torch.enable_grad():
            loss = self._loss(model, data).mean()
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(p) if g is None else g
            for (name, p), g in zip(parameters.items(), found, strict=True)
        }
        if not all(bool(torch.isfinite(g).all()) for g in gradients.values()):
            warnings.warn(
                f"The public gradient of step {step} is not finite and was left out: look for "
                "missing or extreme values in the public data.",
                RuntimeWarning,
                stacklevel=3,
            )
            return {name: torch.zeros_like(p) for name, p in parameters.items()}
        return {name: self.weight * g for name, g in gradients.items()}
