"""The white-box audit of correlated noise: a canary that takes part several times.

Each coordinate is a run of its own, with a gradient of one number, so that thousands of runs cost
one. Who takes part is drawn by the real sampler, and questions are answered by the real mechanism,
step by step. Whoever attacks sees all answers, knows the bands and the canary's part (the first,
whose columns are whole), mixes the answers again into rows with independent noise, and takes each
participation's likelihood ratio over its rows.

Guarantee: the bounds together are true with the audit's confidence. Found are columns that are too
long, too little noise, and records that take part more often than is accounted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.signal import lfilter

from plumbline.auditing.lower_bounds import LowerBound, gaussian_dp, threshold_test
from plumbline.auditing.scores import Floats
from plumbline.checks import check_count, check_positive
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.random_source import SecureSource, SeededSource
from plumbline.mechanism.release import Query
from plumbline.mechanism.rounding import rounded_down, rounded_up
from plumbline.noise import Banded
from plumbline.sampling import Parts, PoissonSampler
from plumbline.training.answering import Answers


@dataclass(frozen=True)
class BandsAudit:
    """What an audit of correlated noise has found.

    Attributes:
        bands, steps, noise_multiplier: Of the runs.
        rate: The probability with which the canary enters a batch of its part.
        claimed: What the accountant says that epsilon is at most.
        bounds: What it is at least.
    """

    bands: int
    steps: int
    noise_multiplier: float
    rate: float
    claimed: float
    bounds: tuple[LowerBound, ...]

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot be true."""
        return any(bound.refutes(self.claimed) for bound in self.bounds)

    def verdict(self) -> str:
        """In words."""
        best = max(self.bounds, key=lambda bound: bound.epsilon)
        words = "The claim is refuted" if self.refuted else "Consistent with the claim"
        return (
            f"{words}: over {self.steps} steps epsilon is at least {rounded_down(best.epsilon)} "
            f"(by {best.how}), and {rounded_up(self.claimed)} is claimed."
        )


def audit_bands(
    noise: Banded,
    *,
    cycles: int = 3,
    noise_multiplier: float = 2.0,
    rate: float = 1.0,
    delta: float = 1e-5,
    repetitions: int = 20_000,
    confidence: float = 1 - 1e-6,
    seed: int | None = None,
) -> BandsAudit:
    """Audits runs with correlated noise.

    Args:
        noise: From ``plumbline.noise.banded``, with two bands or more.
        cycles: How many steps the canary can take part in.
        noise_multiplier: Of the gradient.
        rate: The probability with which the canary enters a batch of its part.
        delta: At which epsilon is claimed and bounded.
        repetitions: How many runs there are with the canary, and how many without it.
        confidence: That of all bounds together.
        seed: Makes the audit repeatable. By default the noise is drawn securely.
    """
    check_count("cycles", cycles)
    check_count("repetitions", repetitions)
    check_positive("noise_multiplier", noise_multiplier)
    if noise.bands < 2:
        raise ValueError("noise has one band, so it is independent; audit_step audits that.")
    budget = Budget(
        noise_multiplier=noise_multiplier,
        delta=delta,
        steps=cycles * noise.parts,
        sampling_rate=rate / noise.parts,
        records=1,
    )
    plan = budget.resolve(1, parts=noise.parts)
    bands = np.array(noise.coefficients(plan.steps))
    answers = _answers(noise, plan, bands, repetitions, seed)
    scores, shift = _scores(answers, bands, noise, plan)
    both = scores[:, :repetitions], scores[:, repetitions:]
    rate = plan.release.sampling.rate
    each = 1 - (1 - confidence) / (2 if rate == 1 else 1)
    ratios = [np.log1p(rate * np.expm1(one - shift / 2)).sum(0) for one in both]
    bounds = [threshold_test(*ratios, delta=delta, confidence=each)]
    if rate == 1:  # then sums of scores are normal
        bounds.append(gaussian_dp(*(one.sum(0) for one in both), delta=delta, confidence=each))
    return BandsAudit(noise.bands, plan.steps, noise_multiplier, rate, plan.epsilon, tuple(bounds))


def _answers(
    noise: Banded, plan: Plan, bands: Floats, repetitions: int, seed: int | None
) -> Floats:
    """The answers of all steps, ``[steps, 2 repetitions]``: in the first half with the canary."""
    source = SecureSource() if seed is None else SeededSource(seed, "audit of bands")
    # Enough records that as many as are wanted are in the first part.
    drawn = 2 * noise.parts * repetitions + 20 * noise.parts**2 + 1000
    parts = Parts(noise.parts, source)
    sampler = PoissonSampler(drawn, plan.release.sampling.rate, source, parts)
    first = np.flatnonzero(parts.of(drawn) == 0)[:repetitions]
    mechanism = Answers(source, 2 * repetitions, 0, bands=bands.tolist())
    found = []
    for step in range(plan.steps):
        value = torch.zeros(2 * repetitions, dtype=torch.float64)
        inside = np.isin(first, sampler.indices(step).numpy(), assume_unique=True)
        value[:repetitions][torch.from_numpy(inside)] = 1.0
        query = Query(value={"w": value}, sensitivity=1.0, sigma=plan.noise_multiplier)
        answer = mechanism.answer(query, plan.release.queries, step, 0)
        found.append(answer["w"].numpy())
    mechanism.close()
    return np.stack(found)


def _scores(answers: Floats, bands: Floats, noise: Banded, plan: Plan) -> tuple[Floats, float]:
    """For each participation of the first part, its rows along the bands, in units of the noise.

    Returns:
        ``[cycles, runs]``, and how far a participation moves a score, which is also its variance.
    """
    rows = lfilter(bands, [1.0], answers, axis=0)
    starts = range(0, plan.steps, noise.parts)
    along = np.stack([bands @ rows[start : start + noise.bands] for start in starts])
    return along / plan.noise_multiplier**2, float(bands @ bands) / plan.noise_multiplier**2
