"""The cost of choosing the best of several private runs, when only the best one is shown.

Papernot and Steinke 2022: draw a number of candidates from a geometric distribution, run each on
its own, give each a private score, and show only the winner. The number, the losers and their
scores stay secret. dp-accounting's ``RepeatAndSelectDpEvent`` computes what this costs, by RDP.

Guarantee: an upper bound, for candidates drawn independently of the data and of each other. A
search that learns from earlier scores is not covered.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp_accounting
from dp_accounting.rdp import RdpAccountant

from plumbline.mechanism.accountant import Releases, quiet_absl
from plumbline.mechanism.calibration import BudgetError
from plumbline.mechanism.random_source import Stream
from plumbline.mechanism.rounding import rounded_up

_GEOMETRIC = 1.0  # the shape of the distribution, in dp-accounting's terms
_MOST_NOISE = 1e4
_SLACK = 1e-3


@dataclass(frozen=True)
class RandomCount:
    """A geometric number of candidates, at least one.

    Attributes:
        mean: The average number of candidates.
    """

    mean: float

    def __post_init__(self) -> None:
        if not 1 < self.mean < math.inf:
            raise ValueError(f"mean is {self.mean}; it must be above 1 and finite.")

    def draw(self, stream: Stream) -> int:
        """The number of candidates: as secret as the noise."""
        count = 1
        # In 53 bits, with the probability rounded down: at worst a few more candidates, by a
        # fraction of 2^-53.
        while int(stream.uint64(1)[0]) >> 11 >= int(2**53 / self.mean):
            count += 1
        return count

    def epsilon(self, releases: Releases, *, delta: float, once: Releases = ()) -> float:
        """The cost of the whole selection, if a candidate and its score release ``releases``.

        Args:
            releases: Of each candidate; none of them may add to delta.
            delta: Of the guarantee.
            once: What was released once, before all candidates.
        """
        once = list(once)
        event = dp_accounting.dp_event.RepeatAndSelectDpEvent
        repeated = event(_event(releases), self.mean, _GEOMETRIC)
        delta -= sum(release.delta * count for release, count in once)
        if delta <= 0:
            return math.inf
        with quiet_absl():
            composed = RdpAccountant().compose(repeated).compose(_event(once))
            return float(composed.get_epsilon(delta))

    def calibrate(
        self,
        releases_at: Callable[[float], Releases],
        *,
        epsilon: float,
        delta: float,
        once: Releases = (),
    ) -> float:
        """The least noise multiplier, to 0.1 %, at which the selection costs at most ``epsilon``.

        Raises:
            BudgetError: If no noise meets the budget.
        """

        def spent(noise: float) -> float:
            return self.epsilon(releases_at(noise), delta=delta, once=once)

        floor = spent(_MOST_NOISE)
        if floor > epsilon:
            raise BudgetError(
                f"epsilon is {epsilon:g}, but with unlimited noise in training the selection still "
                f"costs {rounded_up(floor, 4)}. Raise epsilon, or the noise of the score, or "
                f"lower the mean number of candidates ({self.mean:g})"
            )
        low, high = 0.1, _MOST_NOISE
        if spent(low) <= epsilon:
            return low
        while high > (1 + _SLACK) * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
        return high


def _event(releases: Releases) -> Any:
    """Releases as dp-accounting's events, composed."""
    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(
                    release.sampling.rate, dp_accounting.GaussianDpEvent(release.noise_multiplier)
                ),
                count,
            )
            for release, count in releases
        ]
    )
