"""The one place where questions meet noise.

``training`` alone passes a method's questions to the mechanism. Every question must be one that the
method declared (its noise multiplier was charged); the noise scale comes only from the sensitivity
that the question carries.
"""

from __future__ import annotations

from torch import Tensor

from plumbline.mechanism.noise import NoisePrefetcher, add_noise, gaussian, rounding_sensitivity
from plumbline.mechanism.random_source import RandomSource
from plumbline.mechanism.release import GaussianQuery, Query


class UndeclaredQuery(RuntimeError):
    """A method asked something that it had not declared, and that was not charged."""


class Answers:
    """Answers the questions of one step after another.

    Args:
        source: Where randomness comes from.
        numel: How many values the gradient has, whose noise may be drawn ahead.
        steps: Up to which step noise is drawn ahead, in a thread; 0 for never.
    """

    def __init__(self, source: RandomSource, numel: int, steps: int) -> None:
        self._source = source
        self._gradient = NoisePrefetcher(source, numel, stop=steps)

    def answer(
        self, query: Query, declared: tuple[GaussianQuery, ...], step: int, place: int
    ) -> dict[str, Tensor]:
        """The value with noise; ``place`` counts the step's questions from 0."""
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
        if asked.noise_multiplier == 0:
            return dict(value)
        numel = sum(tensor.numel() for tensor in value.values())
        std = asked.noise_multiplier * asked.sensitivity
        std = asked.noise_multiplier * (asked.sensitivity + rounding_sensitivity(std, numel))
        if asked.name == "gradient" and asked.name not in [one.name for one in declared[:place]]:
            noise = self._gradient.take(step)
        else:
            noise = gaussian(self._source.once("noise", step, place), numel)
        return add_noise(value, std, noise)

    def close(self) -> None:
        """Lets go of the noise prepared ahead."""
        self._gradient.close()
