"""The one place where questions are answered with noise.

Only ``training`` passes a method's questions to the mechanism. Every question must be one that the
method declared (its noise multiplier was charged); the noise scale comes only from the sensitivity
that the question carries. Where several processes make a run, this is also where their parts of a
value are added up, each with its own share of the noise: no part is ever seen without.

Noise may be correlated between steps (`mechanism.correlated`): that of the question named
``gradient``, whose answers the weights are sums of. Others have independent noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from plumbline.gradients.summation import MOST_RECORDS
from plumbline.mechanism.correlated import Correlated, mixing_sensitivity
from plumbline.mechanism.noise import NoisePrefetcher, add_noise, drawn, in_place_of
from plumbline.mechanism.random_source import RandomSource
from plumbline.mechanism.release import GaussianQuery, Query
from plumbline.mechanism.shared_noise import joined, noisy_share, shares_rounding_sensitivity
from plumbline.methods.base import GRADIENT
from plumbline.training.distributed import Ranks
from plumbline.training.distributed_shards import Shards


class UndeclaredQuery(RuntimeError):
    """A method asked something that it had not declared, and that was not charged."""


class Answers:
    """Answers the questions of one step after another.

    Args:
        source: Where randomness comes from.
        numel: How many values the gradient has, whose noise may be drawn ahead.
        steps: Up to which step noise is drawn ahead, in a thread; 0 for never.
        ranks: The processes that have a part of each value; by default this one has all of it.
        shards: The model's sharded parameters, if they are: gradients are answered in shards too.
        bands: The coefficients of correlated noise; a single one for independent noise.
    """

    def __init__(
        self,
        source: RandomSource,
        numel: int,
        steps: int,
        ranks: Ranks | None = None,
        shards: Shards | None = None,
        bands: Sequence[float] = (1.0,),
    ) -> None:
        self._ranks = Ranks() if ranks is None else ranks
        self._shards = shards
        self._source = source
        self._gradient = NoisePrefetcher(source, numel, stop=steps)
        self._correlated = Correlated(bands) if len(bands) > 1 else None

    def follows(self, step: int) -> bool:
        """Whether the gradient's answer in this step depends on exact sums of earlier steps."""
        return self._correlated is not None and self._correlated.follows(step)

    def answer(
        self,
        query: Query,
        declared: tuple[GaussianQuery, ...],
        step: int,
        place: int,
        mark: str = "",
    ) -> dict[str, Tensor]:
        """The value with noise.

        Several ranks meet here before they exchange anything: should one of them have failed by
        now, to charge the step say, nothing of it is released.

        Args:
            query: The question, with this rank's part of the exact answer.
            declared: The questions of a step.
            step: Which step it is.
            place: Which of its questions, from 0.
            mark: What this rank tells the others.
        """
        asked = query.asked
        if place >= len(declared) or (asked.name, asked.noise_multiplier) != (
            declared[place].name,
            declared[place].noise_multiplier,
        ):
            raise UndeclaredQuery(
                f"Question {place + 1} of the step is '{asked.name}' with noise multiplier "
                f"{asked.noise_multiplier}, but the method declared "
                f"{[(one.name, one.noise_multiplier) for one in declared]}. What is asked must be "
                "what is charged: correct the method's `queries`."
            )
        value = query.value if not isinstance(query.value, Tensor) else {"value": query.value}
        at = f"question {place + 1} of step {step}"
        ranks = self._ranks
        shards = None if isinstance(query.value, Tensor) else self._shards
        alone = ranks.count == 1 and shards is None
        if asked.noise_multiplier == 0:
            if alone:
                return dict(value)
            # In float64, where the order of the parts hardly matters.
            parts = {name: tensor.detach().double() for name, tensor in value.items()}
            ranks.meet(at, mark)
            total = _added_up(parts, ranks) if shards is None else shards.added_up(parts)
            return {name: total[name].to(tensor.dtype) for name, tensor in value.items()}
        numel = sum(tensor.numel() for tensor in value.values())
        is_gradient = asked.name == GRADIENT
        is_gradient = is_gradient and GRADIENT not in [one.name for one in declared[:place]]
        correlated = self._correlated if is_gradient else None
        bands = 1 if correlated is None else correlated.bands
        std = asked.noise_multiplier * query.movement
        slack = shares_rounding_sensitivity(std, bands * numel, ranks.count)
        slack += mixing_sensitivity(query.movement, bands, MOST_RECORDS)
        std = asked.noise_multiplier * (query.movement + slack)
        if is_gradient:
            noise = self._gradient.take(step)
        else:
            noise = self._source.once("noise", step, place)
        exact = value if correlated is None else correlated.row(value, std, step)
        if alone:
            # Of correlated noise, the next steps need the whole answer.
            kind = query.answer_type if correlated is None else None
            noisy = add_noise(exact, std, noise, kind)
        else:
            share = noisy_share(exact, std, drawn(noise, numel), ranks.count)
            ranks.meet(at, mark)
            if shards is not None:
                return shards.joined(share, value, std)
            noisy = joined(ranks.sum(share), exact, std, ranks.count)
        return noisy if correlated is None else correlated.decoded(noisy, value, step)

    def close(self) -> None:
        """Releases the noise prepared ahead."""
        self._gradient.close()


def _added_up(parts: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    flat = torch.cat([tensor.reshape(-1) for tensor in parts.values()])
    return in_place_of(parts, ranks.sum(flat))
