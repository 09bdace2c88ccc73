"""A reading of the measurements in plain words: what costs utility, who bears it, what to try.

Each rule looks at a few numbers, says what they mean, and repeats them. The clipped gradient is ``a
g + c`` with g the true gradient and c orthogonal to it (Bias-Aware Minimisation, Theorem 1). What
shortens it, a learning rate can mend; so the other errors are compared with what is left of g, and
the noise is divided by the number of steps T, since it averages out along a run while bias does
not.

| cause | score | says |
| --- | --- | --- |
| clipping magnitude | ``(1 - a)^2`` | the step is shorter; another learning rate mends it |
| clipping direction | ``|c|^2 / (a |g|)^2`` | it points elsewhere; no learning rate mends it |
| noise | ``d sigma^2 S^2 / (L^2 T (a |g|)^2)`` | what noise is left after T steps |

The steps of Adam and its kin do not depend on the gradient's length, so that under them a shorter
gradient is no cause. (How much of a loss another learning rate wins back is read from runs that
differ in it: the page of a comparison says so.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from plumbline.diagnostics.base import NOT_COVERED
from plumbline.diagnostics.bias import Bias, ErrorParts
from plumbline.formats import finite, percent

Cause = Literal["clipping direction", "clipping magnitude", "noise", "nothing"]

NEGLIGIBLE = 0.05
"""A score below this is no cause worth a word."""

SERIOUS = 0.25
"""A direction error or noise above this (an angle of 27 degrees) comes before a shorter step."""

BACKWARDS = 1e6
"""The score of a direction error that leaves nothing of the gradient, or turns it around."""

LENGTHLESS = ("adam", "adamw", "nadam")
"""Optimizers whose steps are as long whatever the gradient's length."""

UNEVEN = 1.5
"""A group that is clipped, or pays, this many times more than another bears it."""


@dataclass(frozen=True)
class Evidence:
    """What the rules look at; whatever is missing is left out of the verdict.

    Attributes:
        bias: Of a sample, at the end of training or along it.
        errors: The same sample's error, by cause.
        steps: How many steps the run has, T.
        cost_by_group: How much accuracy each group lost to privacy (pi_k, in points).
        direction_by_group: Each group's R_dir.
        method: The run's method, by name.
        optimizer: The run's optimizer, by name.
    """

    bias: Bias | None = None
    errors: ErrorParts | None = None
    steps: int | None = None
    cost_by_group: Mapping[str, float] = field(default_factory=dict)
    direction_by_group: Mapping[str, float] = field(default_factory=dict)
    method: str = "dpsgd"
    optimizer: str = "sgd"


@dataclass(frozen=True)
class Finding:
    """One rule's finding.

    Attributes:
        rule: The rule's name.
        text: In words, with its numbers.
        numbers: The numbers it rests on.
    """

    rule: str
    text: str
    numbers: dict[str, float]


@dataclass(frozen=True)
class Verdict:
    """What dominates the loss of utility, and what to try.

    Attributes:
        cause: The largest cause.
        scores: Each cause's score, where it is known.
        findings: What the rules found.
        suggestions: What to try next, in order.
        label: That none of this is covered by epsilon.
    """

    cause: Cause
    scores: dict[str, float]
    findings: tuple[Finding, ...]
    suggestions: tuple[str, ...]
    label: str = NOT_COVERED

    def __str__(self) -> str:
        lines = [finding.text for finding in self.findings]
        if self.suggestions:
            lines.append("Try next: " + "; ".join(self.suggestions) + ".")
        return "\n".join([*lines, f"({self.label})"])


def verdict(evidence: Evidence) -> Verdict:
    """Applies every rule."""
    scores = causes(evidence)
    findings = [
        finding
        for finding in (
            _bias(evidence),
            _direction(evidence, scores),
            _magnitude(evidence, scores),
            _noise(evidence, scores),
            _groups(evidence),
        )
        if finding is not None
    ]
    cause = _dominant(scores)
    if cause == "nothing":
        text = "Neither clipping nor noise costs much here."
        if not scores:
            text = "There is not enough evidence to say what costs utility."
        findings.append(Finding("nothing", text, scores))
    return Verdict(cause, scores, tuple(findings), tuple(_suggestions(evidence, cause)))


def causes(evidence: Evidence) -> dict[str, float]:
    """Each cause's score; unknown ones are left out."""
    scores: dict[str, float] = {}
    if evidence.bias is None:
        return scores
    kept, size = finite(evidence.bias.magnitude), finite(evidence.bias.gradient_norm)
    direction = finite(evidence.bias.direction)
    if kept is None or direction is None or not size:
        return scores
    if evidence.optimizer not in LENGTHLESS:
        scores["clipping magnitude"] = (1 - kept) ** 2
    scores["clipping direction"] = _against(direction**2, kept * size)
    noise = None if evidence.errors is None else finite(evidence.errors.noise)
    if noise is not None and evidence.steps:
        scores["noise"] = _against(noise / evidence.steps, kept * size)
    return scores


def _dominant(scores: Mapping[str, float]) -> Cause:
    order: Sequence[Cause] = ("clipping direction", "clipping magnitude", "noise")
    known = [cause for cause in order if scores.get(cause, 0.0) >= NEGLIGIBLE]
    # What no learning rate can mend comes first.
    mendable: Cause = "clipping magnitude"
    lasting = [cause for cause in known if cause is not mendable and scores[cause] >= SERIOUS]
    return max(lasting or known, key=lambda cause: scores[cause]) if known else "nothing"


def _bias(evidence: Evidence) -> Finding | None:
    """Norm, relative norm and angle, together: a small bias can still point elsewhere."""
    bias = evidence.bias
    if bias is None:
        return None
    norm, part, angle = finite(bias.norm), finite(bias.relative), finite(bias.degrees)
    if norm is None or part is None or angle is None:
        return None
    text = (
        f"The bias of clipping is {part:.2f} times the true gradient (norm {norm:.3g}), and the "
        f"clipped gradient points {angle:.0f} degrees away from it."
    )
    return Finding("bias", text, {"norm": norm, "relative": part, "degrees": angle})


def _direction(evidence: Evidence, scores: Mapping[str, float]) -> Finding | None:
    score = scores.get("clipping direction")
    if score is None or score < NEGLIGIBLE or evidence.bias is None:
        return None
    angle = finite(evidence.bias.cosine)
    turned = "" if angle is None else f" (cosine {angle:.2f})"
    text = (
        f"Clipping turns the gradient{turned}: what it adds in other directions is "
        f"{score**0.5:.2f} times what it leaves of the gradient. No learning rate mends that."
    )
    if score >= BACKWARDS:
        text = f"Clipping turns the gradient around{turned}: a step goes uphill."
    return Finding("clipping direction", text, {"score": score, "cosine": angle or 0.0})


def _magnitude(evidence: Evidence, scores: Mapping[str, float]) -> Finding | None:
    kept = None if evidence.bias is None else finite(evidence.bias.magnitude)
    if kept is None or (1 - kept) ** 2 < NEGLIGIBLE:
        return None
    score = scores.get("clipping magnitude")
    text = (
        f"Clipping leaves {percent(kept, digits=0)} of the gradient's length in its own direction."
    )
    if score is None:
        text += f" That costs nothing: {evidence.optimizer}'s steps do not depend on the length."
        return Finding("clipping magnitude", text, {"kept": kept})
    if kept > 0:
        text += f" A learning rate {1 / kept:.3g} times as large makes up for that."
    return Finding("clipping magnitude", text, {"score": score, "kept": kept})


def _noise(evidence: Evidence, scores: Mapping[str, float]) -> Finding | None:
    score = scores.get("noise")
    if score is None or score < NEGLIGIBLE or evidence.steps is None:
        return None
    text = (
        f"Noise: averaged over the run's {evidence.steps:,} steps, what is left of it is "
        f"{score**0.5:.2f} times what clipping leaves of the gradient."
    )
    return Finding("noise", text, {"score": score})


def _groups(evidence: Evidence) -> Finding | None:
    costs = evidence.cost_by_group
    if len(costs) < 2:
        return None
    most = max(costs, key=lambda group: costs[group])
    least = min(costs, key=lambda group: costs[group])
    gap = costs[most] - costs[least]
    numbers = {f"cost of {group}": cost for group, cost in costs.items()}
    if gap < 1.0 or costs[most] < UNEVEN * max(costs[least], 0.0):
        text = f"Privacy costs the groups about the same (at most {gap:.1f} points apart)."
        return Finding("groups", text, numbers)
    text = (
        f"Privacy costs {most} {costs[most]:.1f} points of accuracy and {least} {costs[least]:.1f}."
    )
    turned = evidence.direction_by_group
    if most in turned and turned[most] == max(turned.values()) and turned[most] > 0:
        text += f" Clipping's direction error is largest for {most} too."
    return Finding("groups", text, numbers)


def _suggestions(evidence: Evidence, cause: Cause) -> list[str]:
    if cause == "clipping magnitude":
        return ["a larger learning rate, or a method without a threshold (automatic)"]
    if cause == "clipping direction":
        adapt = ["global_adapt, which scales most records alike"]
        return [
            *(adapt if evidence.method != "global_adapt" else []),
            "bam, which shortens the gradients that clipping bends",
            "a larger clip bound, if the noise leaves room",
        ]
    if cause == "noise":
        return [
            "larger batches or fewer steps for the same epsilon",
            "a smaller clip bound, or a model with fewer trainable parameters",
        ]
    return []


def _against(squared_error: float, left: float) -> float:
    """A squared error as a part of what is left of the gradient, squared."""
    return min(BACKWARDS, squared_error / left**2) if left > 0 else BACKWARDS
