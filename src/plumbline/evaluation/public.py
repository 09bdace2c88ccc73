"""BatchClipping (Clipping Bias Reduction, Alg. 3): BatchNorm under privacy, with public companions.

A record goes through BatchNorm together with a few public inputs, drawn for it anew in each step;
only its own loss counts, so the companions' labels are never used. A trained model predicts in the
same way: with companions, by majority over several draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.checks import check_count
from plumbline.evaluation.base import Chunk, Evaluation, Rows, evaluation
from plumbline.evaluation.seen import Field, record_of_rows, repeated, shown, with_inputs
from plumbline.gradients import each_record, own_statistics
from plumbline.record_random import Draws


@evaluation
@dataclass
class BatchClipping(Evaluation):
    """A record's loss with its activations normalised together with those of public inputs.

    Attributes:
        public: The public inputs, ``[P, ...]``, of the form of the records' inputs.
        companions: How many of them accompany a record, p.
        inputs: Where a batch has the inputs.
    """

    public: Tensor
    companions: int = 3
    inputs: Field = 0

    slot = "records"
    needs_public = True
    together = True

    def __post_init__(self) -> None:
        check_count("companions", self.companions)
        if not isinstance(self.public, Tensor) or len(self.public) < 1:
            raise ValueError("public must be a tensor with at least one public input, [P, ...].")
        if self.public.is_floating_point() and not bool(torch.isfinite(self.public).all()):
            raise ValueError(
                "public has numbers that are not finite, which would spoil every record's batch "
                "statistics. Give finite public inputs."
            )

    @property
    def passes(self) -> int:
        return 1 + self.companions

    @property
    def not_covered(self) -> tuple[str, ...]:
        return (
            f"the {len(self.public):,} public inputs that accompany the records: nothing about "
            "them is protected, and they must not be about the people who are",
        )

    def see(self, chunk: Chunk) -> Chunk:
        times = 1 + self.companions
        draws = chunk.draws("companions")

        def accompanied(rows: Tensor) -> Tensor:
            return with_companions(rows, self.public, self.companions, draws)

        data: Any = with_inputs(repeated(chunk.data, times), self.inputs, accompanied)
        record = record_of_rows(chunk.records, times, torch.device("cpu"))
        weights = torch.zeros(chunk.records, times)
        weights[:, 0] = 1
        return shown(chunk, Rows(data, record, weights.flatten(), together=True))


def predict(
    model: nn.Module,
    inputs: Tensor,
    public: Tensor,
    *,
    companions: int = 3,
    votes: int = 10,
    seed: int = 0,
) -> Tensor:
    """The classes of ``inputs``, ``[N]``: each vote is with other companions, the majority wins.

    Args:
        model: A classifier with BatchNorm, trained with ``BatchClipping``; its mode is as before.
        inputs: ``[N, ...]``.
        public: The public inputs that it was trained with, ``[P, ...]``.
        companions: How many accompany an input.
        votes: How many draws of companions vote. Of classes with as many votes, the first wins.
        seed: What the companions are drawn from.
    """
    check_count("votes", votes)
    if not len(inputs):
        return torch.zeros(0, dtype=torch.long, device=inputs.device)
    times = 1 + companions
    counts: Tensor | None = None
    for vote in range(votes):
        draws = Draws(torch.arange(len(inputs)), f"companions {seed} {vote}")
        rows = with_companions(inputs.repeat_interleave(times, 0), public, companions, draws)
        with torch.no_grad(), own_statistics(model):
            output = each_record(lambda own: model(own)[0], rows, rows=times)
        if counts is None:
            counts = torch.zeros_like(output, dtype=torch.long)
        counts[torch.arange(len(output)), output.argmax(1)] += 1
    assert counts is not None
    return counts.argmax(1)


def with_companions(rows: Tensor, public: Tensor, companions: int, draws: Draws) -> Tensor:
    """Rows that come ``1 + companions`` times each: all but the first of these made public ones."""
    if rows.shape[1:] != public.shape[1:]:
        raise ValueError(
            f"The public inputs have shape {tuple(public.shape[1:])} each, the records' inputs "
            f"{tuple(rows.shape[1:])}. Give public inputs of the records' form."
        )
    chosen = draws.integers(len(public), companions).to(public.device)
    shown = rows.view(-1, 1 + companions, *rows.shape[1:]).clone()
    shown[:, 1:] = public[chosen].to(shown)
    return shown.flatten(0, 1)
