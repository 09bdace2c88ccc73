"""What privacy costs each group, at the end of training (Gradient Misalignment, Eqs. 1 and 2).

With theta* the non-private model, theta~ a private one and the expectation over its randomness,
that is over seeds:

- privacy cost ``pi_k = acc(theta*; D_k) - E[acc(theta~; D_k)]`` (Eq. 1), as a fraction;
- excessive risk ``R_k = E[L(theta~; D_k)] - L(theta*; D_k)`` (Eq. 2).

If there are as many non-private as private runs, they are paired by seed, as for the paper's
standard errors: a seed that splits the data differently then cancels. Otherwise theta* is the mean
over the non-private runs, and standard errors show the randomness of the private runs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plumbline.fairness.evaluating import NOT_COVERED, GroupReport, evaluate
from plumbline.fairness.gaps import Gap, gap_of, judged_of, too_small_of, worst_of
from plumbline.fairness.groups import MINIMUM_SIZE, Names, SensitiveFeatures
from plumbline.fairness.metrics import LOSS
from plumbline.fairness.outcomes import Outcomes
from plumbline.fairness.remarks import main_metric
from plumbline.fairness.seeds import Estimate, common_sizes, estimate
from plumbline.results import Number, Undefined, minus, to_json


@dataclass(frozen=True)
class CostGap(Gap):
    """The gap of the groups' expected costs, the largest over pairs of groups.

    Attributes:
        standard_error: Of the difference between these two groups, over runs. It ignores that
            the pair was chosen for being far apart.
        per_run: The gap of each private run, to compare methods over seeds.
    """

    standard_error: Number
    per_run: tuple[Number, ...]


@dataclass(frozen=True)
class CostByGroup:
    """A cost, overall and by group. Lower is better, and costs may be negative.

    Attributes:
        overall: Over all records.
        by_group: pi_k or R_k by group.
        judged: The groups that are large enough to judge.
    """

    overall: Estimate
    by_group: Mapping[str, Estimate]
    judged: tuple[str, ...]

    @property
    def worst(self) -> str | Undefined:
        """The judged group that pays most."""
        return worst_of(self._means(), self.judged, "lower")

    @property
    def gap(self) -> CostGap:
        """The largest ``|pi_a - pi_b|`` between judged groups (R for the risk)."""
        gap = gap_of(self._means(), self.judged)
        runs = range(len(self.overall.per_run))
        per_run = tuple(gap_of(self._in_run(run), self.judged).value for run in runs)
        error: Number = Undefined("there is no gap")
        if gap.highest is not None and gap.lowest is not None:
            error = self._signed(gap.highest, gap.lowest).standard_error
        return CostGap(gap.value, gap.highest, gap.lowest, gap.left_out, error, per_run)

    def between(self, first: str, second: str) -> Estimate:
        """``|pi_a - pi_b|`` of two groups of any size (R for the risk)."""
        for group in (first, second):
            if group not in self.by_group:
                raise ValueError(f"There is no group {group!r}; the groups are {[*self.by_group]}.")
        signed = self._signed(first, second)
        return Estimate(
            _size(signed.mean), signed.standard_error, tuple(map(_size, signed.per_run))
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON-able values."""
        parts = {
            "overall": self.overall,
            "by_group": self.by_group,
            "worst": self.worst,
            "gap": self.gap,
        }
        return {name: to_json(part) for name, part in parts.items()}

    def _means(self) -> dict[str, Number]:
        return {group: one.mean for group, one in self.by_group.items()}

    def _in_run(self, run: int) -> dict[str, Number]:
        return {group: one.per_run[run] for group, one in self.by_group.items()}

    def _signed(self, first: str, second: str) -> Estimate:
        pairs = zip(self.by_group[first].per_run, self.by_group[second].per_run, strict=True)
        return estimate([minus(a, b) for a, b in pairs])


@dataclass(frozen=True)
class Cost:
    """What privacy costs, by group.

    Attributes:
        privacy_cost: pi_k, lost accuracy (Eq. 1); of numbers, the share of variance lost.
        excessive_risk: R_k, added loss (Eq. 2).
        sizes: The number of test records of each group, in the run with the fewest.
        too_small: Groups that are too small to judge in some run.
    """

    privacy_cost: CostByGroup
    excessive_risk: CostByGroup
    sizes: Mapping[str, int]
    too_small: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON-able values."""
        parts = {name: to_json(part) for name, part in vars(self).items()}
        return {**parts, "privacy": NOT_COVERED}


def privacy_cost(
    private: Sequence[Outcomes],
    nonprivate: Sequence[Outcomes],
    *,
    sensitive_features: SensitiveFeatures,
    names: Names | None = None,
    minimum_size: int = MINIMUM_SIZE,
) -> Cost:
    """The cost of privacy, for runs that were tested on the same n records.

    Args:
        private: The outcomes of the private runs, one per seed.
        nonprivate: Those of one or several non-private runs; if as many, with the same seeds.
        sensitive_features: Each record's group, ``[n]``, or several features by name.
        names: The groups' names, as in ``evaluate``.
        minimum_size: Groups with fewer records are too small to judge.
    """
    reports = [
        [
            evaluate(
                run, sensitive_features=sensitive_features, names=names, minimum_size=minimum_size
            )
            for run in runs
        ]
        for runs in (private, nonprivate)
    ]
    return cost_of_reports(*reports)


def cost_of_reports(private: Sequence[GroupReport], nonprivate: Sequence[GroupReport]) -> Cost:
    """The same from reports, for runs that were each tested on their own records."""
    if not private or not nonprivate:
        raise ValueError(
            f"There are {len(private)} private and {len(nonprivate)} non-private runs; the cost of "
            "privacy needs at least one of each."
        )
    sizes, minimum_size = common_sizes([*private, *nonprivate])
    judged = judged_of(sizes, minimum_size)

    def cost(metric: str, sign: int) -> CostByGroup:
        def of(group: str | None) -> Estimate:
            own, reference = (
                [run.overall[metric] if group is None else run.value(group, metric) for run in runs]
                for runs in (private, nonprivate)
            )
            if len(reference) != len(own):
                reference = [estimate(reference).mean] * len(own)
            pairs = zip(own, reference, strict=True)
            return estimate([minus(b, a) if sign < 0 else minus(a, b) for a, b in pairs])

        return CostByGroup(of(None), {group: of(group) for group in sizes}, judged)

    main = main_metric(private[0].overall)
    return Cost(cost(main, -1), cost(LOSS, 1), sizes, too_small_of(sizes, minimum_size))


def _size(value: Number) -> Number:
    return value if isinstance(value, Undefined) else abs(value)
