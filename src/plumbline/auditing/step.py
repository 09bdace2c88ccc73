"""The white-box audit of one step: what the real step tells of a planted canary.

The step is the one that trains: its clipping, its noise, its normaliser and its accounting are
what is audited. How far the canary moves the exact answers is measured (``watched``); the noise is
read off entries of the real answers that no record touches, so that millions of repetitions cost
one step; whether the canary is in a batch is drawn by the real sampler. Three tests look at what
comes out (``STATISTICS``).

Guarantee: all of an audit's bounds together are true with its confidence, given that the noise of a
step's entries is alike and independent, and that the canary moves an answer as far as it did here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from plumbline.auditing import scores
from plumbline.auditing.canary import Canary
from plumbline.auditing.lower_bounds import LowerBound, gaussian_dp, threshold_test
from plumbline.auditing.scores import Floats
from plumbline.auditing.watched import Told
from plumbline.auditing.world import World
from plumbline.checks import check_count, check_positive
from plumbline.mechanism.rounding import rounded_down, rounded_up
from plumbline.methods import Method, find

Statistic = Literal["answers", "scale", "difference"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""``answers``: the likelihood ratio of all of a step's answers. ``scale``: how far the update
varies where no record is. ``difference``: of two steps' gradients."""

_FEW, _MANY = 3, 100  # other records: few do not hide a batch's size, many steady groups' counts
_HALF = 0.5  # the sampling rate at which two steps most often differ by the canary
_LEAST = 100  # repetitions that an audit needs at least: scales are taken over several


@dataclass(frozen=True)
class AuditFinding:
    """One bound beside the claim that it tests.

    Attributes:
        statistic: What was looked at.
        bound: What epsilon is at least.
        claimed: What the accountant says it is at most: for one step, or two for the difference.
    """

    statistic: Statistic
    bound: LowerBound
    claimed: float

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot be true."""
        return self.bound.refutes(self.claimed)

    @property
    def share(self) -> float:
        """The bound as a share of what is claimed."""
        return self.bound.epsilon / self.claimed


@dataclass(frozen=True)
class StepAudit:
    """What the audit of a step found.

    Attributes:
        method: Which method.
        noise_multiplier: That of its gradient query.
        sampling_rate: The probability with which a record takes part.
        delta: At which epsilon is claimed and bounded.
        confidence: That of all findings together.
        claimed: The accountant's epsilon of one step; infinite without a guarantee.
        moved: How far the canary moves the answers, in standard deviations of the declared noise.
        canary: The canary that moved them farthest.
        findings: One for each test; none where nothing is claimed.
        reason: Why nothing is claimed, or None.
    """

    method: str
    noise_multiplier: float
    sampling_rate: float
    delta: float
    confidence: float
    claimed: float
    moved: float
    canary: Canary | None
    findings: tuple[AuditFinding, ...]
    reason: str | None

    @property
    def refuted(self) -> bool:
        """Whether any claim is refuted."""
        return any(finding.refuted for finding in self.findings)

    @property
    def best(self) -> AuditFinding:
        """The finding that comes nearest to its claim, or goes farthest beyond it."""
        if not self.findings:
            raise ValueError(self.verdict())
        return max(self.findings, key=lambda finding: finding.share)

    def verdict(self) -> str:
        """In words."""
        if self.reason is not None:
            return f"There is nothing to audit: no epsilon is claimed, since {self.reason}."
        best = self.best
        numbers = (
            f"epsilon is at least {rounded_down(best.bound.epsilon)} (the {best.statistic}, by "
            f"{best.bound.how}), and {rounded_up(best.claimed)} is claimed"
        )
        if self.refuted:
            return f"The claim is refuted: {numbers}."
        return f"Consistent with the claim: {numbers}."


def audit_step(
    method: str | Method,
    *,
    noise_multiplier: float = 1.0,
    sampling_rate: float = 1.0,
    delta: float = 1e-5,
    repetitions: int = 100_000,
    confidence: float = 1 - 1e-6,
    statistics: Sequence[Statistic] = STATISTICS,
    others: int | None = None,
    seed: int | None = None,
) -> StepAudit:
    """Audits one step of a method (and a second one, for the difference).

    Args:
        method: A method, or the name or reference of one (``plumbline.methods.find``), then with
            settings that suit the canary's world.
        noise_multiplier: Of the gradient query.
        sampling_rate: With which probability a record takes part.
        delta: At which epsilon is claimed and bounded.
        repetitions: How many scores there are with the canary, and how many without it.
        confidence: That of all findings together: a right implementation is found wrong with at
            most the probability that is left.
        statistics: Which tests are made.
        others: How many records there are beside the canary; by default 3, and 100 for a method
            that counts groups.
        seed: Makes the audit repeatable. By default the noise is drawn securely.
    """
    check_positive("noise_multiplier", noise_multiplier)
    check_count("repetitions", repetitions)
    if repetitions < _LEAST:
        raise ValueError(f"repetitions is {repetitions}; an audit needs {_LEAST} or more.")
    _check_statistics(statistics)
    made = audited(method) if isinstance(method, str) else method
    if others is None:
        others = _MANY if made.needs_groups else _FEW
    world = World(made, noise_multiplier, delta, others, seed)
    claimed = world.claimed(sampling_rate, 1)
    world.try_sampling(sampling_rate)
    moved, canary = math.nan, None
    findings: tuple[AuditFinding, ...] = ()
    if made.private:
        canary = world.farthest()
        told = world.steps(canary, 2 * repetitions, 2 if "difference" in statistics else 1)
        moved = told[0].moved
        count = len(statistics) + ("answers" in statistics)  # answers are judged in two ways
        tests = _Tests(world, told, sampling_rate, claimed, delta, 1 - (1 - confidence) / count)
        findings = tuple(found for name in statistics for found in tests.findings(name))
    return StepAudit(
        method=made.name,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        delta=delta,
        confidence=confidence,
        claimed=claimed,
        moved=moved,
        canary=canary,
        findings=findings,
        reason=made.unbounded_reason,
    )


def audited(name: str, **settings: Any) -> Method:
    """A named method with settings that suit the canary's world, which has no images."""
    suited: dict[str, dict[str, Any]] = {
        "self_augmented": {"augment": _unchanged, "views": 2},
        "batch_clipping": {"public": torch.zeros(4, dtype=torch.long)},
    }
    entry = find(name)
    return entry.make(**{**entry.example(), **suited.get(name, {}), **settings})


@dataclass(frozen=True)
class _Tests:
    """From what was told to bounds on epsilon, each with ``confidence``."""

    world: World
    told: list[Told]
    rate: float
    claimed: float
    delta: float
    confidence: float

    def findings(self, statistic: Statistic) -> list[AuditFinding]:
        """What one statistic shows."""
        first = self.told[0]
        if statistic == "answers":
            always = scores.answers(first, self._taking_part(1.0))
            gaussian = gaussian_dp(
                *always, delta=self.delta, confidence=self.confidence, sampling_rate=self.rate
            )
            counted = self._counted(scores.answers(first, self._taking_part(self.rate)))
            return [AuditFinding(statistic, bound, self.claimed) for bound in (gaussian, counted)]
        if statistic == "scale":
            counted = self._counted(scores.scale(first, self._taking_part(self.rate)))
            return [AuditFinding(statistic, counted, self.claimed)]
        rate = min(self.rate, _HALF)
        parts = self._taking_part(rate), self._taking_part(rate, 1)
        counted = self._counted(scores.difference(first, self.told[1], parts))
        return [AuditFinding(statistic, counted, self.world.claimed(rate, 2))]

    def _counted(self, both: tuple[Floats, Floats]) -> LowerBound:
        return threshold_test(*both, delta=self.delta, confidence=self.confidence)

    def _taking_part(self, rate: float, step: int = 0) -> Floats:
        return self.world.taking_part(rate, len(self.told[0].update_in) // 2, step)


def _unchanged(rows: Tensor, draws: Any) -> Tensor:
    return rows


def _check_statistics(statistics: Sequence[str]) -> None:
    unknown = [one for one in statistics if one not in STATISTICS]
    if unknown or not statistics:
        raise ValueError(
            f"statistics is {list(statistics)}; give one or more of {', '.join(STATISTICS)}."
        )
