"""Scores that tell a step with the canary from one without: higher for more likely in.

Each function gives the scores of both worlds, from one half of the repetitions each. Whether the
canary takes part in a repetition is given as ones and zeros, which the real sampler has drawn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plumbline.auditing.watched import Answer, Told

Floats = NDArray[np.float64]

_BLOCK = 256  # entries whose spread is one observation of the scale


def answers(told: Told, taking_part: Floats) -> tuple[Floats, Floats]:
    """``sum_j answer_j . shift_j / std_j^2``, the likelihood ratio's direction, ``[n]`` each.

    No other test is better, if the noise is as declared. Projected on its shift, the noise of an
    answer is like that of any one of its entries.
    """
    weights = [answer.moved / answer.std**2 for answer in told.answers]
    moved = sum(w * answer.moved for w, answer in zip(weights, told.answers, strict=True))
    scores = np.zeros((2, len(taking_part)))
    for weight, answer in zip(weights, told.answers, strict=True):
        scores += weight * np.stack(_halves(answer.noise))
    return scores[0] + moved * taking_part, scores[1]


def scale(told: Told, taking_part: Floats) -> tuple[Floats, Floats]:
    """How little the update varies where no record is, block by block, ``[n / block]`` each.

    An update that is divided by the size of its batch varies less in a larger one.
    """
    inside, _ = _halves(told.update_in)
    absent, outside = _halves(told.update_out)
    spreads = [_spread(values) for values in (inside, absent, outside)]
    chosen = taking_part[: len(spreads[0])] == 1
    return -np.where(chosen, spreads[0], spreads[1]), -spreads[2]


def difference(
    first: Told, second: Told, taking_part: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """How far two steps' gradients are apart where the canary is, ``[n]`` each.

    Noise that is used twice cancels, and leaves what was to be hidden.
    """
    one, two = (_gradient(told) for told in (first, second))
    inside, outside = _halves(one.noise - two.noise)
    moved = one.moved * taking_part[0] - two.moved * taking_part[1]
    return np.abs(inside + moved), np.abs(outside)


def _gradient(told: Told) -> Answer:
    return next(answer for answer in told.answers if answer.name == "gradient")


def _halves(values: Tensor) -> tuple[Floats, Floats]:
    """One half for the world with the canary, the other for that without it."""
    numbers: Floats = values.double().numpy()
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle : 2 * middle]


def _spread(values: Floats) -> Floats:
    """The logarithm of the mean square of each block."""
    size = min(_BLOCK, max(1, len(values) // 10))
    blocks = values[: len(values) // size * size].reshape(-1, size)
    return np.asarray(np.log(np.square(blocks).mean(1)))
