"""Computes how much privacy releases cost: the epsilon at a given delta.

Two accountants, both from dp-accounting. PLD, the default, composes privacy loss distributions and
is tighter; RDP composes Rényi divergences, to compare with papers that used it.

Guarantee: both are upper bounds. PLD is a *pessimistic* estimate: it always rounds towards a larger
epsilon. Where floating point would decide its answer (see `privacy_loss`) it returns RDP's. A
release with basic composition never costs less than the joint mechanism of its queries.

Neighbouring relations: "add_remove", one record more or less, the unit of sensitivities and noise
multipliers; and "replace_one", one record exchanged for another, which moves a sum up to twice as
far. (A vector of group counts moves by sqrt 2 only; it is charged as if by 2.)

| relation | PLD | RDP |
| --- | --- | --- |
| add_remove | exact up to rounding | Poisson-sampled Gaussian of Mironov et al., arXiv 1908.10530 |
| replace_one | exact up to rounding | full batches: half the noise; sampled: group privacy |

Steps that sample parts of the records in turn (`CyclicSampling`) are counted by how often a record
can take part in them: T steps of b parts are ceil(T / b) steps at the rate within a part.

A release may add something to delta itself (`StepRelease.delta`); a replacement, a removal and an
addition, adds it twice. What is left of delta is what the queries are accounted at.

Group privacy: a replacement is a removal and an addition, so (e, d) for add_remove gives
(2 e, (1 + exp(e)) d) for replace_one. It is solved for the d that makes the second number the
requested delta.
"""

import bisect
import contextlib
import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

import dp_accounting
import numpy as np
import numpy.typing as npt
from dp_accounting.rdp import RdpAccountant

from plumbline.mechanism import privacy_loss
from plumbline.mechanism.release import Release, Selection, StepRelease

Accountant = Literal["pld", "rdp"]
Relation = Literal["add_remove", "replace_one"]
Releases = Iterable[tuple[StepRelease, int]]
_Chosen = tuple[tuple[float, tuple[privacy_loss.Piece, ...], int], ...]


def epsilon(
    releases: Iterable[tuple[Release, int]],
    *,
    delta: float,
    accountant: Accountant = "pld",
    relation: Relation = "add_remove",
) -> float:
    """The epsilon for which all `releases` together are (epsilon, delta)-differentially private.

    Releases of one or several runs may be mixed, in any order. Queries may depend on earlier
    answers; sampling rates, noise multipliers and step counts must not (they are public constants).

    Args:
        releases: (release, number of equal steps) pairs. No releases cost 0. With a `Selection`
            among them, RDP accounts for all of them.
        delta: the probability with which the bound may fail, in (0, 1).
        accountant: "pld" or "rdp".
        relation: "add_remove" or "replace_one".

    Returns:
        Epsilon; infinite if any release has no noise or no guarantee.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}; it must lie strictly between 0 and 1")
    if accountant not in get_args(Accountant):
        raise ValueError(f"accountant is {accountant!r}; choose one of {get_args(Accountant)}")
    if relation not in get_args(Relation):
        raise ValueError(f"relation is {relation!r}; choose one of {get_args(Relation)}")
    steps: list[tuple[StepRelease, int]] = []
    selections: list[tuple[Selection, int]] = []
    for release, count in releases:
        if isinstance(release, Selection):
            selections.append((release, count))
        else:
            steps.append((release, count))
    delta -= (1 if relation == "add_remove" else 2) * sum(r.delta * n for r, n in steps)
    if delta <= 0:
        return math.inf
    joint = _together(steps, selections, delta, accountant, relation)
    places = max((len(r.queries) for r, _ in steps if r.composition == "basic"), default=1)
    if places == 1:
        return joint
    # The sum alone is not a bound: it treats each query as if it had a subsample of its own.
    alone = [
        _together(share, [] if place else selections, delta / places, accountant, relation)
        for place, share in enumerate(_one_by_one(steps, places))
    ]
    return max(joint, sum(alone))


def _together(
    steps: Releases,
    selections: Iterable[tuple[Selection, int]],
    delta: float,
    accountant: Accountant,
    relation: Relation,
) -> float:
    """The epsilon of all queries, with those about one batch as one joint mechanism."""
    pieces = _pieces(steps)
    chosen = tuple((one.mean, _pieces(one.releases), times) for one, times in selections if times)
    if any(sigma == 0 for _, sigma, _ in (*pieces, *(p for _, own, _ in chosen for p in own))):
        return math.inf
    if not pieces and not chosen:
        return 0.0
    return _epsilon(pieces, delta, "rdp" if chosen else accountant, relation, chosen)


def _pieces(releases: Releases) -> tuple[privacy_loss.Piece, ...]:
    """(sampling rate, noise multiplier, count) of what is equal as far as its cost goes."""
    counts: dict[tuple[float, float], int] = {}
    for release, count in releases:
        if count < 0:
            raise ValueError(f"a release cannot be counted {count} times")
        if count:
            # Sensitivities may differ between equal steps: only their ratio to the noise matters.
            key = (release.sampling.rate, min(release.noise_multiplier, _MOST_NOISE))
            # Each pair by itself: steps of two cycles can both be of a record's own part.
            counts[key] = counts.get(key, 0) + release.participations(count)
    return tuple(sorted((rate, sigma, count) for (rate, sigma), count in counts.items()))


_MOST_NOISE = 1e7
"""More costs no more than this, and its square may overflow."""


def _one_by_one(releases: Releases, places: int) -> Iterator[Releases]:
    """The releases, with basic composition split into queries that are charged alone."""
    for place in range(places):
        share = []
        for release, count in releases:
            if release.composition == "joint":
                share += [(release, count)] if place == 0 else []
            elif place < len(release.queries):
                share.append((release.alone(place), count))
        yield share


class EpsilonCurve:
    """Epsilon after each step of a run of equal steps, fast enough to show at every step.

    Epsilon is computed on a grid of about `points` step counts, each when first needed (some
    hundredths of a second), and afterwards read from the cache in microseconds. Between grid points
    the next larger one answers, so the curve never under-states. The grid is quadratic, since
    epsilon grows like the root of the steps, so the curve over-states by about 1/`points` of the
    final epsilon. At `steps`, and beyond, the answer is exact.

    Args:
        release: what every step releases.
        steps: the number of planned steps.
        delta: as for `epsilon`.
        accountant: as for `epsilon`.
        relation: as for `epsilon`.
        before: earlier releases that count too.
        points: the size of the grid.
    """

    def __init__(
        self,
        release: StepRelease,
        *,
        steps: int,
        delta: float,
        accountant: Accountant = "pld",
        relation: Relation = "add_remove",
        before: Releases = (),
        points: int = 64,
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps is {steps}; a run has at least one")
        self._release = release
        self._before = tuple(before)
        self._delta = delta
        self._accountant: Accountant = accountant
        self._relation: Relation = relation
        self._grid = sorted({-(-steps * k * k // points**2) for k in range(points + 1)})
        self._values: dict[int, float] = {}

    def __call__(self, step: int) -> float:
        """An upper bound on epsilon after `step` steps."""
        if step < 0:
            raise ValueError(f"step is {step}; steps are counted from 0")
        place = bisect.bisect_left(self._grid, step)
        counted = self._grid[place] if place < len(self._grid) else step
        if counted not in self._values:
            self._values[counted] = epsilon(
                (*self._before, (self._release, counted)),
                delta=self._delta,
                accountant=self._accountant,
                relation=self._relation,
            )
        return self._values[counted]


@functools.lru_cache(maxsize=4096)
def _epsilon(
    pieces: tuple[privacy_loss.Piece, ...],
    delta: float,
    accountant: str,
    relation: str,
    chosen: _Chosen = (),
) -> float:
    replace_one = relation == "replace_one"
    if accountant == "pld":
        value = privacy_loss.epsilon(pieces, delta=delta, replace_one=replace_one)
        if value is not None:
            return value
    if not replace_one:
        return float(_renyi(pieces, chosen).get_epsilon(delta))
    if not chosen and all(rate == 1 for rate, _, _ in pieces):
        halved = tuple((rate, sigma / 2, count) for rate, sigma, count in pieces)
        return float(_renyi(halved).get_epsilon(delta))
    return _epsilon_of_pairs(_renyi(pieces, chosen).get_epsilon, delta)


def _renyi(pieces: tuple[privacy_loss.Piece, ...], chosen: _Chosen = ()) -> RdpAccountant:
    # Fractional orders are slow: use fewer for long mixtures, which is valid and a little looser.
    few = len(pieces) > 16
    composed = RdpAccountant(_FEW_ORDERS if few else None)
    # Divergences of equal steps add up, so compute them for one step. The sum is stored where
    # `compose` would store it, because `compose` takes events, not divergences.
    steps = sum(count * _one_step(rate, sigma, few) for rate, sigma, count in pieces)
    composed._rdp = steps + sum(times * _selected(mean, own, few) for mean, own, times in chosen)
    return composed


_GEOMETRIC = 1.0  # the shape of the number of candidates, in dp-accounting's terms
_FEW_ORDERS = [*np.arange(1.5, 11, 0.5), *range(11, 64), 128, 256, 512, 1024]


@functools.lru_cache(maxsize=1024)
def _one_step(rate: float, sigma: float, few: bool) -> npt.NDArray[np.float64]:
    """The divergences of one step at each order."""
    step = RdpAccountant(_FEW_ORDERS if few else None)
    with quiet_absl():
        gaussian = dp_accounting.GaussianDpEvent(sigma)
        step.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian))
    return np.asarray(step._rdp)


@functools.lru_cache(maxsize=1024)
def _selected(
    mean: float, pieces: tuple[privacy_loss.Piece, ...], few: bool
) -> npt.NDArray[np.float64]:
    """The divergences of a selection at each order."""
    candidate = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)),
                count,
            )
            for rate, sigma, count in pieces
        ]
    )
    chosen = dp_accounting.dp_event.RepeatAndSelectDpEvent(candidate, mean, _GEOMETRIC)
    with quiet_absl():
        return np.asarray(RdpAccountant(_FEW_ORDERS if few else None).compose(chosen)._rdp)


@contextlib.contextmanager
def quiet_absl() -> Iterator[None]:
    """Silences the log lines for orders that are left out, which is normal and safe."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _epsilon_of_pairs(epsilon_at: Callable[[float], float], delta: float) -> float:
    """Group privacy for two records: the least 2 e with (1 + exp(e)) d <= delta, e = epsilon(d).

    `epsilon_at` falls with d. Every d kept below satisfies the inequality, so the result is valid
    even where the left-hand side is not monotone.
    """

    def fits(log_d: float) -> bool:
        cost = log_d + float(np.logaddexp(0.0, epsilon_at(math.exp(log_d))))
        return cost <= math.log(delta)

    high = math.log(delta / 2)
    if fits(high):
        return 2 * float(epsilon_at(math.exp(high)))
    low, stride = high, 1.0
    while not fits(low):
        low, stride = low - stride, 2 * stride
        if low < math.log(1e-290):
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return 2 * float(epsilon_at(math.exp(low)))
