"""A run's records through its method: the gradients that its next step would clip.

Nothing is drawn from the run's noise and nothing is charged, and no trace stays: the method is
copied, random generators are put back, and weights are never written.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from plumbline.clipping import Unclipped
from plumbline.diagnostics.base import Sample
from plumbline.gradients import PerSampleGradients, combine
from plumbline.mechanism.release import Query, answered
from plumbline.methods import Method
from plumbline.training import Private
from plumbline.without_trace import no_trace


def sample_of(private: Private, units: Tensor, seed: int = 0) -> Sample:
    """The sample of training records (or users, where the run protects users), ``[N]``.

    What the model sees, at which weights, in which buckets, with which noise before clipping: all
    as in the run's next step, were these its batch. Where a method asks for a noisy gradient first
    (DP-SAM), the answer has noise of the run's size, from a generator of its own. A clipping's
    bounds are those that the last step left.

    Args:
        private: The run, between two steps.
        units: Which ones.
        seed: Of that noise.
    """
    run_method: Any = private.method
    method: Method = copy.deepcopy(run_method)
    clipping, batch = method.clipping, private.batch_of(units)
    in_buckets = clipping.buckets(1) is not None
    groups = next((chunk.groups for chunk in batch.chunks()), None)
    plain = None

    def noisy(query: Query) -> dict[str, Tensor]:
        std = query.sigma * query.sensitivity * scale if query.sigma else 0.0
        assert math.isfinite(std)  # a query without a bound has no noise
        return {
            name: part + std * torch.randn(part.shape, generator=generator).to(part)
            for name, part in query.named.items()
        }

    with no_trace(private.model):
        if not method.plain:
            own = _joined(method.plain_gradients(batch))
            pooled = len(units) if clipping.together else None
            plain = Sample(own, Unclipped(), groups=None if pooled else groups, drawn=pooled)
        scale = clipping.normaliser(len(units)) / clipping.normaliser(
            private.plan.expected_batch_size
        )
        generator = torch.Generator().manual_seed(seed)
        gradients = _joined(answered(method.before_clipping(batch), noisy))
    if in_buckets:
        gradients = combine([gradients], [clipping.normaliser(1)])
    return Sample(
        gradients,
        clipping,
        private.plan.noise_multiplier,
        private.plan.expected_batch_size,
        None if in_buckets else groups,
        plain,
        len(units) if in_buckets else None,
        (lambda members: sample_of(private, units[members.cpu()], seed)) if in_buckets else None,
    )


def _joined(parts: list[PerSampleGradients]) -> PerSampleGradients:
    """The chunks' records as one; several chunks are made dense, as what limits chunks is."""
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        part.norms()  # sums that cancel are computed again, exactly
    held = [part.materialise() for part in parts]
    values = {name: torch.cat([one[name] for one in held]) for name in held[0]}
    return PerSampleGradients.of(values, torch.cat([part.losses for part in parts]))
