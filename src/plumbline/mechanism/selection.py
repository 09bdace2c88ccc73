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

from plumbline.mechanism import accountant
from plumbline.mechanism.accountant import Releases
from plumbline.mechanism.calibration import BudgetError, least_noise
from plumbline.mechanism.random_source import Stream
from plumbline.mechanism.release import Selection
from plumbline.mechanism.rounding import rounded_up

_MOST_NOISE = 1e4


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
        return accountant.epsilon([(self.of(releases), 1), *once], delta=delta, accountant="rdp")

    def of(self, releases: Releases) -> Selection:
        """What such a selection releases, for a ledger, if a candidate releases these."""
        return Selection(mean=self.mean, releases=tuple(releases))

    def calibrate(
        self,
        releases_at: Callable[[float], Releases],
        *,
        epsilon: float,
        delta: float,
        once: Releases = (),
    ) -> float:
        """The least noise multiplier, to 0.1 % of epsilon, with which it costs at most ``epsilon``.

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
        return least_noise(spent, epsilon)
