"""The audit of a whole run by one run (Steinke, Nasr and Jagielski 2023).

Many canaries are drawn; a fair coin decides for each whether it is trained on. Whoever sees the
result says of the canaries that look most like members that they are in, of those that look least
like it that they are out, and nothing of the others. How often that is right bounds epsilon from
below, whatever the training is: it needs no access to its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plumbline.auditing.lower_bounds import LowerBound, one_run
from plumbline.checks import check_count
from plumbline.mechanism.random_source import SecureSource, SeededSource
from plumbline.mechanism.rounding import rounded_down, rounded_up

Train = Callable[[NDArray[np.bool_]], ArrayLike]
"""Trains on the canaries that are marked, ``[m]``, beside all other records, and gives each
canary's score, ``[m]``: higher for more likely in, such as the loss before less the loss after."""

_SHARE = 0.2  # of the canaries are guessed about, unless it is said otherwise


@dataclass(frozen=True)
class RunAudit:
    """What the audit of a run found.

    Attributes:
        canaries: How many there were.
        guesses: About how many of them a guess was made.
        correct: How many guesses were correct.
        bound: What epsilon is at least.
    """

    canaries: int
    guesses: int
    correct: int
    bound: LowerBound

    def refuted(self, claimed: float) -> bool:
        """Whether the epsilon ``claimed`` cannot be true."""
        return self.bound.refutes(claimed)

    def verdict(self, claimed: float) -> str:
        """In words."""
        right = f"{self.correct} of {self.guesses} guesses were correct, so epsilon is at least"
        bound = rounded_down(self.bound.epsilon)
        if math.isinf(claimed):
            return f"No epsilon is claimed. {right} {bound}."
        numbers = f"{right} {bound}, and {rounded_up(claimed)} is claimed"
        if self.refuted(claimed):
            return f"The claim is refuted: {numbers}."
        return f"Consistent with the claim: {numbers}."


def audit_run(
    train: Train,
    canaries: int,
    *,
    delta: float,
    guesses: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
) -> RunAudit:
    """Audits a training of one's own, by running it once.

    Args:
        train: Trains, and scores the canaries.
        canaries: How many there are, m. A bound of epsilon needs several times ``e^epsilon``.
        delta: At which epsilon is bounded; with many canaries it must be far below 1/m.
        guesses: How many canaries are guessed about, half of them as in; by default a fifth of
            all. It has to be chosen before the result is seen.
        confidence: That of the bound.
        seed: Makes the coins repeatable. By default they are drawn securely.
    """
    check_count("canaries", canaries)
    guesses = max(2, round(_SHARE * canaries)) if guesses is None else guesses
    check_count("guesses", guesses)
    if guesses > canaries:
        raise ValueError(f"guesses is {guesses}, more than the {canaries} canaries.")
    source = SecureSource() if seed is None else SeededSource(seed, "one run")
    included = source.stream("coins").uint64(canaries) % 2 == 1
    scores = np.asarray(train(included.copy()), dtype=np.float64)
    if scores.shape != (canaries,) or np.isnan(scores).any():
        raise ValueError(
            f"train gave scores of shape {scores.shape} for {canaries} canaries; it must give one "
            "number for each, and none that is NaN."
        )
    order = np.argsort(scores, kind="stable")
    least, most = order[: guesses // 2], order[canaries - (guesses - guesses // 2) :]
    correct = int(included[most].sum() + (~included[least]).sum())
    bound = one_run(correct, guesses, canaries, delta=delta, confidence=confidence)
    return RunAudit(canaries, guesses, correct, bound)
