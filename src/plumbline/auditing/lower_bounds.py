"""Lower bounds on epsilon, from what an attacker was able to tell apart.

An accountant says how much a mechanism leaks at most; an audit shows how much it leaks at least. If
a mechanism is (epsilon, delta)-private, no test tells a data set with a canary from one without it
better than epsilon allows, so a test that does refutes the claim. Three ways to such a bound:
``clopper_pearson`` from counts, which assumes nothing of the mechanism; ``gaussian_dp`` (Nasr et
al. 2023, "Tight auditing"), for a mechanism that is exactly Gaussian; and ``one_run`` (Steinke,
Nasr and Jagielski 2023, Theorem 5.2), from one training run with many canaries.

Guarantee: epsilon at ``delta`` lies below a bound with a probability of at most ``1 - confidence``,
over the repetitions of the audit. A bound below a claim proves nothing: a better test may exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

_PROPOSING = 0.1  # the share of the repetitions that propose thresholds, and then count no more
_THRESHOLDS = 400  # that are tried there
_CAUTION = 1e-6  # how likely a rate may be misjudged there


@dataclass(frozen=True)
class LowerBound:
    """Epsilon is at least this.

    Attributes:
        epsilon: The bound; 0 where nothing was shown.
        delta: The delta at which it holds.
        confidence: The probability with which an audit gives a bound that is true.
        how: Which theorem it is from.
        trials: How many repetitions (or canaries) it is from.
    """

    epsilon: float
    delta: float
    confidence: float
    how: str
    trials: int

    def refutes(self, claimed: float) -> bool:
        """Whether a mechanism that leaks this much cannot have the epsilon ``claimed``."""
        return self.epsilon > claimed


def clopper_pearson(
    hits_in: int, trials_in: int, hits_out: int, trials_out: int, *, delta: float, confidence: float
) -> LowerBound:
    """From how often a test says "in" with the canary there, and how often without it.

    With a true-positive rate of at least t and a false-positive rate of at most f, epsilon is at
    least ``ln((t - delta) / f)``; and, of the test that says the opposite, at least
    ``ln((1 - f - delta) / (1 - t))``. Both follow from the same two exact binomial bounds.

    Args:
        hits_in: How often the test said "in" where the canary was.
        trials_in: How often it was asked there.
        hits_out: How often it said "in" where the canary was not.
        trials_out: How often it was asked there.
        delta: The delta at which epsilon is bounded.
        confidence: That of the bound; half of what is left goes to each rate.
    """
    _check(delta, confidence)
    for hits, trials in ((hits_in, trials_in), (hits_out, trials_out)):
        if not 0 <= hits <= trials or trials < 1:
            raise ValueError(f"{hits} hits in {trials} trials; hits lie between 0 and the trials.")
    share = (1 - confidence) / 2
    epsilon = _epsilon_of_rates(
        np.array([hits_in]), trials_in, np.array([hits_out]), trials_out, delta, share
    )
    trials = min(trials_in, trials_out)
    return LowerBound(float(epsilon[0]), delta, confidence, "Clopper-Pearson", trials)


def threshold_test(
    scores_in: ArrayLike, scores_out: ArrayLike, *, delta: float, confidence: float
) -> LowerBound:
    """``clopper_pearson`` of the test that says "in" above a threshold.

    A tenth of each world's scores proposes two thresholds, and the others are counted at both. (A
    threshold chosen on the scores that are counted would make the bound too good.)

    Args:
        scores_in: Higher for more likely in: independent ones with the canary there, ``[n]``.
        scores_out: The same without it, ``[m]``.
        delta: The delta at which epsilon is bounded.
        confidence: That of the bound.
    """
    _check(delta, confidence)
    proposing, counted = [], []
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        values = _finite(name, scores)
        cut = math.ceil(_PROPOSING * len(values))
        proposing.append(np.sort(values[:cut]))
        counted.append(values[cut:])
    sizes = len(counted[0]), len(counted[1])
    each = 1 - (1 - confidence) / 2
    bounds = []
    for threshold in _proposed(proposing, sizes, delta, each):
        hits = [int((own > threshold).sum()) for own in counted]
        bounds.append(
            clopper_pearson(hits[0], sizes[0], hits[1], sizes[1], delta=delta, confidence=each)
        )
    best = max(bounds, key=lambda bound: bound.epsilon)
    return replace(best, confidence=confidence)


def gaussian_dp(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    *,
    delta: float,
    confidence: float,
    sampling_rate: float = 1.0,
) -> LowerBound:
    """From the distance of two normal samples, for a mechanism that is exactly Gaussian.

    Valid only if scores are normal with one standard deviation, with the canary and without it,
    as a projection of a Gaussian mechanism's answer is. Then the distance over the standard
    deviation, mu, has a non-central t distribution, which bounds it, and epsilon follows from it
    in closed form. (Counting needs a thousand times as many repetitions for the same bound.)

    Args:
        scores_in: Independent scores with the canary in the batch, ``[n]``; higher ones.
        scores_out: The same without it, ``[m]``.
        delta: The delta at which epsilon is bounded.
        confidence: That of the bound.
        sampling_rate: The probability with which the canary is in the batch. Below 1 this must be
            exactly so, independently of all else, for the bound to hold: it is not tested here.
    """
    _check(delta, confidence)
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"sampling_rate is {sampling_rate}; it must be in (0, 1].")
    first, second = _finite("scores_in", scores_in), _finite("scores_out", scores_out)
    freedom = len(first) + len(second) - 2
    squares = len(first) * first.var() + len(second) * second.var()
    if not squares > 0:
        raise ValueError("The scores do not vary at all, so they are not those of Gaussian noise.")
    unit = math.sqrt(1 / len(first) + 1 / len(second))
    ratio = float((first.mean() - second.mean()) / math.sqrt(squares / freedom) / unit)
    mu = _least_noncentrality(ratio, freedom, 1 - confidence) * unit if ratio > 0 else 0.0
    epsilon = _amplified(mu, delta, sampling_rate) if mu > 0 else 0.0
    trials = min(len(first), len(second))
    return LowerBound(epsilon, delta, confidence, "Gaussian DP", trials)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon at ``delta`` of a Gaussian whose mean moves by ``mu`` standard deviations.

    Balle and Wang 2018: ``delta = Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu)``.
    """

    def too_small(epsilon: float) -> bool:
        spent = special.ndtr(mu / 2 - epsilon / mu)
        left = math.exp(min(0.0, epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))))
        return bool(spent - left > delta)

    return _largest(too_small, 0.5 * mu**2 + 40 * mu)


def one_run(
    correct: int, guesses: int, canaries: int, *, delta: float, confidence: float
) -> LowerBound:
    """From one run in which a fair coin decided for each canary whether it is in (Theorem 5.2).

    Someone who sees only the result guesses the coins of some canaries and abstains from the
    others. If the run is (epsilon, delta)-private, v or more of r guesses are correct with a
    probability of at most ``f(v) + 2 m delta max_i (f(v - i) - f(v)) / i``, where f(v) is that of v
    or more heads of r coins, each heads with probability ``e^epsilon / (1 + e^epsilon)``.

    Args:
        correct: v, how many guesses were correct.
        guesses: r, how many were made. To be fixed before the coins are looked at.
        canaries: m, how many canaries there were.
        delta: The delta at which epsilon is bounded.
        confidence: That of the bound.
    """
    _check(delta, confidence)
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise ValueError(
            f"{correct} correct of {guesses} guesses about {canaries} canaries; there can be no "
            "more of the former than of the latter, and at least one canary."
        )

    def refuted(epsilon: float) -> bool:
        chance = special.expit(epsilon)
        # Farther than this f is 1 to the last digit, and a larger i only divides it by more.
        beyond = correct - guesses * chance + 6 * math.sqrt(guesses) + 10
        steps = np.arange(1, min(correct, max(1, math.ceil(beyond))) + 1)
        tail = special.bdtrc(correct - 1, guesses, chance)
        below = special.bdtrc(correct - 1 - steps, guesses, chance) - tail
        most = float((below / steps).max(initial=0.0))
        return bool(tail + 2 * canaries * delta * most <= 1 - confidence)

    # A claim of epsilon is refuted by itself: no monotony is needed for the bound to hold.
    epsilon = _largest(refuted, 50.0)
    return LowerBound(epsilon, delta, confidence, "one run", canaries)


def _proposed(
    scores: Sequence[Floats], sizes: tuple[int, int], delta: float, confidence: float
) -> tuple[float, float]:
    """Two thresholds: the best for normal scores like these, and the best by their own counts.

    The first is hardly a matter of chance; the second is right for scores of any shape.
    """
    pooled = np.sort(np.concatenate(scores))
    # Most of the information is in the tails: thresholds are even in the logarithm of their ranks.
    ranks = np.unique(np.geomspace(1, len(pooled), _THRESHOLDS // 2).astype(int)) - 1
    own = np.unique(np.concatenate([pooled[ranks], pooled[::-1][ranks]]))
    hits = [len(one) - np.searchsorted(one, own, side="right") for one in scores]
    # With caution: what looks best by chance is not the best.
    caution = min((1 - confidence) / 2, _CAUTION)
    counted = _epsilon_of_rates(hits[0], len(scores[0]), hits[1], len(scores[1]), delta, caution)
    spread = max(one.std() for one in scores)
    wide = np.linspace(pooled[0] - 2 * spread, pooled[-1] + 2 * spread, _THRESHOLDS)
    expected = [
        np.rint(size * special.ndtr((one.mean() - wide) / max(one.std(), 1e-300)))
        for size, one in zip(sizes, scores, strict=True)
    ]
    normal = _epsilon_of_rates(
        expected[0], sizes[0], expected[1], sizes[1], delta, (1 - confidence) / 2
    )
    return float(wide[int(np.argmax(normal))]), float(own[int(np.argmax(counted))])


def _epsilon_of_rates(
    hits_in: Floats | NDArray[np.int64],
    trials_in: int,
    hits_out: Floats | NDArray[np.int64],
    trials_out: int,
    delta: float,
    share: float,
) -> Floats:
    """The better of the two directions, ``[k]``, each rate's bound failing with ``share``."""
    with np.errstate(invalid="ignore", divide="ignore"):
        least = special.betaincinv(hits_in, trials_in - hits_in + 1, share)
        least = np.where(hits_in > 0, least, 0.0)
        most = special.betainccinv(hits_out + 1, trials_out - hits_out, share)
        most = np.where(hits_out < trials_out, most, 1.0)
        ratios = [(least - delta) / most, (1 - most - delta) / (1 - least)]
        found: Floats = np.log(np.maximum(np.maximum(*ratios), 1.0))
    return found


def _least_noncentrality(ratio: float, freedom: int, chance: float) -> float:
    """The non-centrality at which a t of at least ``ratio`` has the probability ``chance``.

    ``P(T >= t) = E Phi(nc - t S)``, S the root of a chi-square over its degrees of freedom. The
    expectation is taken over the normal score of S, where it is smooth: scipy's own non-central t
    gives up on samples as large as these.
    """
    score = np.linspace(-10, 10, 401)
    chi = np.where(
        score < 0,
        stats.chi2.ppf(special.ndtr(score), freedom),
        stats.chi2.isf(special.ndtr(-score), freedom),
    )
    weight = stats.norm.pdf(score)
    spread = np.sqrt(chi / freedom)

    def unlikely(centre: float) -> bool:
        likely = special.ndtr(centre - ratio * spread) @ weight / weight.sum()
        return bool(likely <= chance)

    return _largest(unlikely, 2 * ratio + 20)


def _amplified(mu: float, delta: float, rate: float) -> float:
    """Epsilon where the canary takes part with probability ``rate`` only.

    The mixture's hockey-stick divergence at ``1 + q (e^eps - 1)`` is q times that at ``e^eps``.
    """
    if delta >= rate:
        return 0.0
    epsilon = gaussian_epsilon(mu, delta / rate)
    if rate == 1:
        return epsilon
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + epsilon))


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """By bisection, a number up to ``most`` at which something holds that does not beyond; or 0."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, most
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _finite(name: str, scores: ArrayLike) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(f"{name} has shape {values.shape}; give two finite scores or more, [n].")
    return values


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; it must be at least 0 and below 1.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1, as 0.95 does.")
