"""A data-set budget: refuses the charge that would take a ledger past (epsilon, delta).

Epsilon is computed rarely: what was once affordable stays so (epsilon never falls when steps are
added), and each time the guard has to compute it, it checks for room ahead as well.
"""

import math
from typing import Any

from plumbline.mechanism.ledger_format import Entries, LedgerError, Limit, canonical
from plumbline.mechanism.rounding import rounded_up

_AHEAD = 1024  # the most steps to check ahead


class BudgetExceeded(LedgerError):
    """The charge would spend more than the budget allows; nothing was charged."""


class BudgetGuard:
    """Raises `BudgetExceeded` if everything charged, with the proposed charge, is too much.

    Guarantee: never passes entries whose epsilon at the limit's delta is above the limit's epsilon.

    Args:
        limit: (epsilon, delta).
        accounting: further arguments of `plumbline.mechanism.accountant.epsilon`, such as
            `accountant` and `relation`.
    """

    def __init__(self, limit: Limit, **accounting: Any) -> None:
        epsilon, delta = limit
        if not (epsilon > 0 and math.isfinite(epsilon) and 0 < delta < 1):
            raise ValueError(
                f"limit is {limit}; give (epsilon, delta) with a finite epsilon above 0 and a "
                "delta between 0 and 1"
            )
        self.limit = limit
        self._accounting = accounting
        self._affordable: dict[str, int] = {}

    def __call__(self, entries: Entries) -> None:
        """Checks `entries`, (release, count) pairs with the proposed charge in them."""
        counts = {canonical(release): count for release, count in entries}
        grown = [key for key, count in counts.items() if count > self._affordable.get(key, 0)]
        if not grown:
            return
        epsilon = self._epsilon(entries, {})
        if not epsilon <= self.limit[0]:
            raise BudgetExceeded(
                f"the charge would take the ledger to epsilon {rounded_up(epsilon, 4)} at delta "
                f"{self.limit[1]:g}, above its budget of {self.limit[0]:g}. Nothing was charged: "
                "stop here, or plan a run with fewer steps or more noise"
            )
        # Check ahead too, so that one answer serves many steps.
        ahead = min(_AHEAD, max(1, sum(counts.values())))
        while ahead and not self._epsilon(entries, dict.fromkeys(grown, ahead)) <= self.limit[0]:
            ahead //= 2
        self._affordable = {key: n + ahead * (key in grown) for key, n in counts.items()}

    def _epsilon(self, entries: Entries, extra: dict[str, int]) -> float:
        return ledger_epsilon(
            [(release, count + extra.get(canonical(release), 0)) for release, count in entries],
            delta=self.limit[1],
            **self._accounting,
        )


def ledger_epsilon(entries: Entries, *, delta: float, **accounting: Any) -> float:
    """Returns the epsilon of ledger entries at `delta`."""
    # Imported here: opening and charging a ledger must not load the accountants.
    from plumbline.mechanism.accountant import epsilon
    from plumbline.mechanism.release import release_from_dict

    try:
        releases = [(release_from_dict(release), count) for release, count in entries]
    except ValueError as error:
        raise LedgerError(f"what was charged cannot be accounted: {error}") from error
    return epsilon(releases, delta=delta, **accounting)
