"""From a privacy budget to the numbers of a run: sampling rate, steps, and noise.

A `Budget` is what the user states, checked when it is created. `Budget.resolve` turns it into a
`Plan` for a number of records and a method's release.

Guarantee: the plan's noise is never rounded down. The epsilon of all its steps, by the accountant
that will report it, is at most the budget, and within 0.1% of it. Step counts are exact: they are
computed with fractions, never with floating-point quotients.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.accountant import epsilon as epsilon_of
from plumbline.mechanism.release import (
    CyclicSampling,
    GaussianQuery,
    PoissonSampling,
    Sampling,
    StepRelease,
)
from plumbline.mechanism.rounding import rounded_up

# The calibrated epsilon may be below the budget by this fraction of it.
_SLACK = 5e-4
# The range of noise multipliers to try: above it a query reveals nothing; below it there is no
# privacy to speak of.
_MOST_NOISE, _LEAST_NOISE = 1e6, 1e-2


class BudgetError(ValueError):
    """A budget that makes no sense or cannot be met; the message says what to change."""


def gradient_only(noise_multiplier: float, sampling: Sampling) -> StepRelease:
    """The release of a step that asks for one clipped gradient and nothing else."""
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=noise_multiplier)
    return StepRelease(sampling=sampling, queries=(query,))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much privacy a run may cost, and how long it trains.

    Give exactly one of each pair: `epsilon` or `noise_multiplier`, `epochs` or `steps`,
    `expected_batch_size` or `sampling_rate`. The last pair may be left to a data loader's batch
    size; without one, the budget cannot be resolved.

    Attributes:
        delta: the probability with which the bound may fail; below 1/n, ideally below 1/(10 n).
        epsilon: the most the whole run may cost; the noise is calibrated to it.
        noise_multiplier: the noise of the method's main query; epsilon follows from it.
        epochs: passes over the data, on average; may be a fraction.
        steps: the number of steps.
        expected_batch_size: the mean size of a Poisson batch.
        sampling_rate: the probability that a record enters a batch.
        records: the number of records (or users, if they are the unit of privacy), if it is public
            knowledge. If None the data set's size is used, and the statement says that it is
            treated as public.
    """

    delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    epochs: float | None = None
    steps: int | None = None
    expected_batch_size: int | None = None
    sampling_rate: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        for one, other in (
            ("epsilon", "noise_multiplier"),
            ("epochs", "steps"),
            ("expected_batch_size", "sampling_rate"),
        ):
            given = [name for name in (one, other) if getattr(self, name) is not None]
            if len(given) != 1 and (given or one != "expected_batch_size"):
                problem = f"both {one} and {other}" if given else f"neither {one} nor {other}"
                raise BudgetError(f"the budget gives {problem}; give exactly one of them")
        for name in ("steps", "expected_batch_size", "records"):
            self._check(name, "a whole number of at least 1", _is_count)
        self._check("delta", "strictly between 0 and 1", lambda value: 0 < value < 1)
        self._check(
            "epsilon",
            "positive and finite (for a run without noise, give noise_multiplier=0 instead)",
            lambda value: 0 < value < math.inf,
        )
        self._check("noise_multiplier", "at least 0 and finite", lambda v: 0 <= v < math.inf)
        self._check("epochs", "positive and finite", lambda value: 0 < value < math.inf)
        self._check(
            "sampling_rate",
            "above 0 and at most 1 (it is a probability; 1 takes every record in every step)",
            lambda value: 0 < value <= 1,
        )

    def _check(self, name: str, allowed: str, holds: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        if value is not None and not holds(value):
            raise BudgetError(f"{name} is {value}; it must be {allowed}")

    def resolve(
        self,
        records: int,
        *,
        release_at: Callable[[float, Sampling], StepRelease] = gradient_only,
        accountant: Accountant = "pld",
        relation: Relation = "add_remove",
        before: Sequence[StepRelease] = (),
        parts: int = 1,
    ) -> "Plan":
        """The plan of a run on `records` records.

        Args:
            records: the size of the data set (in users, if they are the unit of privacy); ignored
                if the budget states a public number of records.
            release_at: what one step of the method releases, given the noise multiplier of its main
                query and the sampling. Further queries may have noise of their own, fixed or in
                proportion; more noise must never cost more privacy.
            accountant: the accountant that computes epsilon.
            relation: the neighbouring relation.
            before: earlier releases that count towards the budget too.
            parts: in how many parts records are drawn, which steps sample in turn; see
                `CyclicSampling`.

        Raises:
            BudgetError: if the numbers do not fit the data, or no noise meets the budget.
        """
        if self.expected_batch_size is None and self.sampling_rate is None:
            raise BudgetError(
                "the budget gives neither expected_batch_size nor sampling_rate; give exactly one "
                "of them, or a data loader with a batch size"
            )
        n = self.records if self.records is not None else records
        warnings = self._check_size(n)
        rate = self._exact_rate(n)
        # Dividing integers rounds correctly, and the sampler draws with this very float.
        sampling_rate = float(rate if self.sampling_rate is None else self.sampling_rate)
        if self.steps is not None:
            steps = self.steps
        else:
            steps = math.ceil(Fraction(str(self.epochs)) / rate)
        sampling: Sampling = PoissonSampling(rate=sampling_rate)
        if parts > 1:
            _check_parts(parts, rate, steps)
            sampling = CyclicSampling(rate=float(parts * rate), parts=parts)

        def step_at(noise_multiplier: float) -> StepRelease:
            return release_at(noise_multiplier, sampling)

        noise_multiplier = self.noise_multiplier
        if self.epsilon is not None:
            noise_multiplier = calibrate_noise(
                step_at,
                steps=steps,
                epsilon=self.epsilon,
                delta=self.delta,
                accountant=accountant,
                relation=relation,
                before=before,
            )
        assert noise_multiplier is not None  # one of the pair was given
        release = step_at(noise_multiplier)
        return Plan(
            budget=self,
            noise_multiplier=noise_multiplier,
            release=release,
            steps=steps,
            sampling_rate=sampling_rate,
            expected_batch_size=self.expected_batch_size or max(1, round(rate * n)),
            records=n,
            records_public=self.records is not None,
            accountant=accountant,
            relation=relation,
            epsilon=epsilon_of(
                [*_once(before), (release, steps)],
                delta=self.delta,
                accountant=accountant,
                relation=relation,
            ),
            delta=self.delta,
            before=tuple(before),
            warnings=warnings,
        )

    def _check_size(self, n: int) -> tuple[str, ...]:
        if not _is_count(n):
            raise BudgetError(f"the number of records is {n}; it must be at least 1")
        if self.expected_batch_size is not None and self.expected_batch_size > n:
            raise BudgetError(
                f"expected_batch_size is {self.expected_batch_size}, more than the {n} records; "
                f"it must be at most {n}, which takes every record in every step"
            )
        if self.delta >= 1 / n:
            raise BudgetError(
                f"delta is {self.delta:g} and there are {n} records; it must be below "
                f"1/{n} = {1 / n:.3g}, or publishing one whole record at random would count as "
                f"private. Choose at most {_advised_delta(n)}"
            )
        if self.delta > 1 / (10 * n):
            return (
                f"Delta, {self.delta:g}, is more than a tenth of 1/n, where n = {n:,} is the size "
                f"of the data; at most {_advised_delta(n)} is advised.",
            )
        return ()

    def _exact_rate(self, n: int) -> Fraction:
        """The sampling rate as the intended fraction: 1/189, not the float next to it."""
        if self.expected_batch_size is not None:
            return Fraction(self.expected_batch_size, n)
        rate = Fraction(self.sampling_rate or 0)
        for meant in (Fraction(round(rate * n), n), rate.limit_denominator(10**9)):
            if float(meant) == self.sampling_rate:
                return meant
        return rate


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A budget made exact. Everything in it is a public constant of the run.

    Attributes:
        budget: the budget it was made from.
        noise_multiplier: of the method's main query.
        release: what every step releases (sensitivities may change along the run).
        steps: the number of steps.
        sampling_rate: the probability q with which a record enters a batch.
        expected_batch_size: L = round(q n), by which sums are divided.
        records: n.
        records_public: whether n was stated as public, rather than taken from the data.
        accountant: the accountant that computed epsilon.
        relation: the neighbouring relation.
        epsilon: the cost of all steps, together with what was released before.
        delta: the delta of that epsilon.
        before: what was released before the first step, each once.
        warnings: sentences for the statement.
    """

    budget: Budget
    noise_multiplier: float
    release: StepRelease
    steps: int
    sampling_rate: float
    expected_batch_size: int
    records: int
    records_public: bool
    accountant: Accountant
    relation: Relation
    epsilon: float
    delta: float
    before: tuple[StepRelease, ...] = ()
    warnings: tuple[str, ...] = ()

    def releases(self, steps: int) -> list[tuple[StepRelease, int]]:
        """Everything that has been released after `steps` steps."""
        return [*_once(self.before), (self.release, steps)]

    @property
    def epochs(self) -> int:
        """The number of epochs, the last of which may have fewer steps."""
        return self.epoch_at(self.steps - 1) + 1

    def epoch_at(self, step: int) -> int:
        """The epoch that a step belongs to; both are counted from 0."""
        return math.floor(step * self._exact_rate)

    def epoch_end(self, epoch: int) -> int:
        """The number of steps that are made when an epoch ends."""
        return min(self.steps, math.ceil((epoch + 1) / self._exact_rate))

    @property
    def _exact_rate(self) -> Fraction:
        return self.budget._exact_rate(self.records)


def calibrate_noise(
    release_at: Callable[[float], StepRelease],
    *,
    steps: int,
    epsilon: float,
    delta: float,
    accountant: Accountant = "pld",
    relation: Relation = "add_remove",
    before: Sequence[StepRelease] = (),
) -> float:
    """The least noise, to 0.1% of epsilon, with which `steps` releases cost at most `epsilon`.

    Args:
        release_at: the release of one step at a noise multiplier; more noise never costs more.
        steps: the number of steps.
        epsilon: the budget.
        delta: the delta of the budget.
        accountant: the accountant that computes epsilon.
        relation: the neighbouring relation.
        before: earlier releases that count towards `epsilon` too.

    Raises:
        BudgetError: if no noise meets the budget.
    """

    def spent(noise_multiplier: float) -> float:
        releases = [*_once(before), (release_at(noise_multiplier), steps)]
        return epsilon_of(releases, delta=delta, accountant=accountant, relation=relation)

    earlier = epsilon_of(_once(before), delta=delta, accountant=accountant, relation=relation)
    if earlier >= epsilon:
        raise BudgetError(
            f"epsilon is {epsilon:g}, but what was released before training already costs "
            f"{rounded_up(earlier, 4)} at delta {delta:g}. Raise epsilon, or release that with "
            "more noise"
        )
    floor = spent(_MOST_NOISE)
    if floor > epsilon:
        release = release_at(_MOST_NOISE)
        if release.no_guarantee_reason is not None:
            raise BudgetError(
                f"epsilon is {epsilon:g}, but this method has no guarantee at any noise "
                f"({release.no_guarantee_reason}); give noise_multiplier instead of epsilon"
            )
        names = ", ".join(f"{q.name} (noise {q.noise_multiplier:g})" for q in release.queries)
        raise BudgetError(
            f"epsilon is {epsilon:g}, but with unlimited noise on the main query {steps} steps "
            f"still cost {rounded_up(floor, 4)} at delta {delta:g}; the queries are: {names}. "
            "Raise epsilon, give the other queries more noise, or take fewer steps or a smaller "
            "sampling rate"
        )
    return least_noise(spent, epsilon)


def least_noise(spent: Callable[[float], float], epsilon: float) -> float:
    """The least noise, to 0.1% of epsilon, with which at most `epsilon` is spent.

    Args:
        spent: what a noise multiplier costs; more noise never costs more.
        epsilon: the budget, which some noise meets.
    """
    low = high = 1.0  # spent(low) > epsilon >= spent(high), once both are found
    while spent(high) > epsilon:
        low, high = high, 2 * high
    while low == high or spent(low) <= epsilon:
        high, low = low, low / 2
        if low < _LEAST_NOISE:
            return high
    for turn in range(100):
        reached = spent(high)
        if reached >= (1 - _SLACK) * epsilon or high <= (1 + 1e-9) * low:
            break
        # Epsilon is close to a power of the noise: aim between the slack and the budget, and
        # halve the interval every third time in case it is not.
        share = 0.5
        if turn % 3 < 2 and reached > 0 and spent(low) < math.inf:
            aim = (1 - _SLACK / 2) * epsilon
            share = math.log(spent(low) / aim) / math.log(spent(low) / reached)
        guess = low * (high / low) ** min(max(share, 0.01), 0.99)
        low, high = (guess, high) if spent(guess) > epsilon else (low, guess)
    return high


def _check_parts(parts: int, rate: Fraction, steps: int) -> None:
    if parts > steps:
        raise BudgetError(
            f"records are drawn in {parts} parts, more than the run's steps, {steps}; noise can be "
            f"correlated over at most {steps} steps. Ask for fewer bands"
        )
    if parts * rate > 1:
        raise BudgetError(
            f"records are drawn in {parts} parts at a sampling rate of {float(rate):.4g}, so each "
            f"step would sample its part at {float(parts * rate):.4g}, more than 1. Ask for at "
            f"most {int(1 / rate)} bands, or for a smaller batch"
        )


def _once(releases: Sequence[StepRelease]) -> list[tuple[StepRelease, int]]:
    return [(release, 1) for release in releases]


def _advised_delta(n: int) -> str:
    """1/(10 n), rounded down to one digit."""
    exponent = math.floor(-math.log10(10 * n))
    return f"{max(1, math.floor(10.0**-exponent / (10 * n)))}e{exponent}"


def _is_count(value: object) -> bool:
    return type(value) is not bool and isinstance(value, numbers.Integral) and int(value) >= 1
