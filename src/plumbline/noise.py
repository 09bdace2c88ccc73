"""Noise that is correlated between steps, so that a part of it cancels in the weights.

Weights are sums of released gradients. Let C be a lower-triangular banded Toeplitz matrix with the
bands c_0 .. c_{b-1}; the noise of step t is row t of C^-1 W, W independent Gaussians. Most of it
is taken back by the steps that follow, and prefix sums carry less of it than of independent noise.
The price is sampling: a record may take part in one of every b steps only (`CyclicSampler`).

`banded` is the square root of the workload, cut after b bands, in closed form (Kalinin and Lampert
2024, "Banded Square Root Matrix Factorization for Differentially Private Model Training"), or bands
that are optimised numerically (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix
Factorization"). A learning-rate schedule is not Toeplitz, and neither knows of it.

Guarantee: the columns of C have a norm of at most 1, in exact arithmetic on the floats that are
used. So one record that takes part once moves all rows of C S together by no more than it moves S.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from plumbline.mechanism.accountant import Accountant
from plumbline.mechanism.calibration import Budget, BudgetError

__all__ = ["Banded", "Choice", "banded", "best", "compare", "prefix_error"]

Strategy = Literal["root", "optimised"]
COMPARED = (1, 4, 16, 64)
"""The numbers of bands that `plumbline budget` compares."""


@dataclass(frozen=True, kw_only=True)
class Banded:
    """Correlated noise as the user asks for it; made by `banded`."""

    bands: int
    parts: int
    momentum: float | None = None
    decay: float = 0.0
    strategy: Strategy = "root"

    def coefficients(self, steps: int, momentum: float = 0.0) -> tuple[float, ...]:
        """c_0 .. c_{b-1}, of norm at most 1.

        Args:
            steps: how many steps the run has, for which optimised bands are best.
            momentum: the optimizer's, where `banded` was given none.
        """
        return _coefficients(self, steps, momentum if self.momentum is None else self.momentum)


def banded(
    bands: int,
    *,
    parts: int | None = None,
    momentum: float | None = None,
    decay: float = 0.0,
    strategy: Strategy = "root",
) -> Banded:
    """Noise correlated over `bands` steps, for `make_private(..., noise=...)`.

    Args:
        bands: over how many steps noise is correlated, b. With 1, noise is independent. The run
            keeps 2 (b - 1) vectors of the size of all its parameters in float64.
        parts: in how many parts records are drawn, at least `bands`, which is the default. Each
            step samples one part, in turn. As many parts as steps, at a sampling rate of
            1 / steps, are a single epoch without sampling: each record takes part once.
        momentum: the momentum that sums are made with; by default the optimizer's, or 0 if it has
            none. It decides how well the noise cancels, and costs no privacy.
        decay: by what share weights shrink in a step: learning rate times weight decay.
        strategy: "root" for the banded square root, or "optimised".

    Raises:
        ValueError: if a number makes no sense.
    """
    parts = bands if parts is None else parts
    for name, value, least in (("bands", bands, 1), ("parts", parts, bands)):
        if type(value) is not int or value < least:
            at_least = "1" if name == "bands" else f"bands, {bands}"
            raise ValueError(
                f"{name} is {value!r}; it must be a whole number of at least {at_least}."
            )
    for name, number in (("momentum", 0.0 if momentum is None else momentum), ("decay", decay)):
        if isinstance(number, bool) or not 0 <= number < 1:
            raise ValueError(f"{name} is {number!r}; it must be at least 0 and below 1.")
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy is {strategy!r}; choose one of {get_args(Strategy)}.")
    if bands == 1 and parts > 1:
        raise ValueError(
            f"parts is {parts} with one band; independent noise needs no parts. Leave parts out."
        )
    return Banded(bands=bands, parts=parts, momentum=momentum, decay=decay, strategy=strategy)


def prefix_error(
    coefficients: Sequence[float], steps: int, *, momentum: float = 0.0, decay: float = 0.0
) -> float:
    """The error of the weights: root mean square over `steps` of their noise, per unit of noise.

    Weights are prefix sums of momentum updates at a constant learning rate of 1.
    """
    return math.sqrt(_mean_square(_workload(steps, momentum, decay), np.asarray(coefficients))[0])


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a number of bands gives for a budget.

    Attributes:
        bands: b.
        noise_multiplier: that meets the budget.
        error: of the weights, relative to independent noise at the same budget.
    """

    bands: int
    noise_multiplier: float
    error: float


def compare(
    budget: Budget,
    records: int,
    *,
    bands: Sequence[int] = COMPARED,
    momentum: float = 0.9,
    accountant: Accountant = "pld",
) -> list[Choice]:
    """What each number of bands gives, independent noise first; those that do not fit are left out.

    Raises:
        BudgetError: if the budget cannot be met with independent noise.
    """
    found: list[Choice] = []
    first = 0.0
    for number in sorted({1, *bands}):
        try:
            plan = budget.resolve(records, parts=number, accountant=accountant)
        except BudgetError:
            if number == 1:
                raise
            continue
        coefficients = banded(number, momentum=momentum).coefficients(plan.steps)
        error = plan.noise_multiplier * prefix_error(coefficients, plan.steps, momentum=momentum)
        first = first or error
        found.append(
            Choice(
                bands=number,
                noise_multiplier=plan.noise_multiplier,
                error=error / first if first else 1.0,
            )
        )
    return found


def best(choices: Sequence[Choice]) -> Choice:
    """The choice with the least error; of equal ones that with the fewest bands."""
    return min(choices, key=lambda one: (one.error, one.bands))


@functools.lru_cache(maxsize=64)
def _coefficients(noise: Banded, steps: int, momentum: float) -> tuple[float, ...]:
    found = _root(noise.bands, momentum, noise.decay)
    if noise.strategy == "optimised" and noise.bands > 1:
        found = _optimised(found, _workload(steps, momentum, noise.decay))
    return _normalised(found)


def _root(bands: int, momentum: float, decay: float) -> NDArray[np.float64]:
    """The first coefficients of (1 - (1 - decay) x)^-1/2 (1 - momentum x)^-1/2.

    They are moments of a positive measure on [0, 1], so they fall, and dividing by their polynomial
    is stable (Enestroem and Kakeya: its roots are outside the unit disc).
    """
    k = np.arange(1, bands)
    of_one = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))  # binom(2k, k) / 4^k
    powers = np.arange(bands)
    return np.convolve(of_one * (1 - decay) ** powers, of_one * momentum**powers)[:bands]


def _workload(steps: int, momentum: float, decay: float) -> NDArray[np.float64]:
    """What a gradient contributes to the weights 0, 1, ... steps later, `[steps]`."""
    shrunk: NDArray[np.float64] = np.power(1 - decay, np.arange(steps))
    return _divided(shrunk, np.array([1.0, -momentum]))


def _divided(series: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """The power series `series / by`, as far as `series` goes."""
    from scipy.signal import lfilter

    divided: NDArray[np.float64] = lfilter([1.0], by, series)
    return divided


def _mean_square(
    workload: NDArray[np.float64], c: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """The mean square of the prefix sums' noise at unit noise, and its gradient by c, `[b]`."""
    steps = len(workload)
    weight = np.arange(steps, 0, -1) / steps  # in how many of the prefix sums a noise is
    noise = _divided(workload, c)
    weighted = weight * noise
    again = _divided(noise, c)  # d noise / d c_k = -x^k noise / c
    gradient = [-2 * float(weighted[k:] @ again[: steps - k]) for k in range(min(len(c), steps))]
    gradient += [0.0] * (len(c) - len(gradient))
    return float(weighted @ noise), np.array(gradient)


def _optimised(start: NDArray[np.float64], workload: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bands with the least error at norm 1, from `start`, which they are never worse than."""
    from scipy.optimize import minimize

    def objective(rest: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        # Scaling c scales the error and the norm alike: c_0 is 1, and both are in one objective.
        c = np.concatenate([[1.0], rest])
        with np.errstate(over="ignore", invalid="ignore"):
            error, slope = _mean_square(workload, c)
        if not math.isfinite(error):
            return math.inf, np.zeros_like(rest)
        return math.log(error) + math.log(c @ c), slope[1:] / error + 2 * rest / (c @ c)

    begin = (start / start[0])[1:]
    found = minimize(objective, begin, jac=True, method="L-BFGS-B")
    return np.concatenate([[1.0], found.x if found.fun <= objective(begin)[0] else begin])


def _normalised(c: NDArray[np.float64]) -> tuple[float, ...]:
    """Scaled to a norm of 1, or by rounding just below: never above."""
    scaled = c / np.linalg.norm(c)
    while sum(Fraction(float(one)) ** 2 for one in scaled) > 1:
        scaled = scaled * (1 - 2.0**-52)
    return tuple(float(one) for one in scaled)
