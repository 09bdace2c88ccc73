"""Is one method better than another over seeds? One-sided Wilcoxon tests, Holm's correction.

Seeds are pairs: run s of a method is compared with run s of the baseline. With n pairs no p-value
is below ``2^-n`` (5 seeds: 1/32), and Holm multiplies the smallest of m by m: with 5 seeds and two
methods nothing can be significant at 0.05. The result says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
from scipy.stats import wilcoxon

from plumbline.fairness.outcomes import Floats
from plumbline.results import Number, Undefined


@dataclass(frozen=True)
class PairedTest:
    """One method against the baseline.

    Attributes:
        mean_difference: The method's mean minus the baseline's.
        p_value: Of the one-sided test alone: how often a method no better than the baseline would
            look this much better.
        adjusted: The same after Holm's correction for the number of methods.
        smallest: The smallest p-value that these pairs can give, ``2^-n`` for n pairs that differ.
        zeros: The number of pairs with no difference, which the test discards.
    """

    mean_difference: float
    p_value: float
    adjusted: float
    smallest: float
    zeros: int


@dataclass(frozen=True)
class SignificanceTests:
    """Several methods against one baseline.

    Attributes:
        tests: By method.
        better: Whether higher or lower values are better.
        seeds: The number of pairs.
        note: What this number of seeds can show.
    """

    tests: Mapping[str, PairedTest]
    better: Literal["higher", "lower"]
    seeds: int
    note: str


def compare_to(
    baseline: Sequence[Number],
    others: Mapping[str, Sequence[Number]],
    better: Literal["higher", "lower"] = "higher",
) -> SignificanceTests:
    """Tests whether each of the others is better than the baseline.

    The signed-rank test treats ties and zeros as scipy does by default: pairs without a difference
    are discarded (Wilcoxon's way), equal differences share their mean rank. Without either the
    p-value is exact up to 50 seeds, with either up to 13 (all sign flips are tried), and beyond
    that it comes from the normal approximation. Differences that agree to 12 digits count as equal,
    since those of accuracies, ratios of whole numbers, carry rounding. If no pair differs, p is 1.

    Args:
        baseline: One value per seed, ``[n]``, such as the accuracies of plain DP-SGD, or its gaps
            (``cost.privacy_cost.gap.per_run``).
        others: For each method one value per seed, in the same order of seeds.
        better: Whether a higher value is better (accuracy) or a lower one (loss, gaps).
    """
    if better not in ("higher", "lower"):
        raise ValueError(f"better is {better!r}; it must be 'higher' or 'lower'.")
    if not others:
        raise ValueError("others is empty; give at least one method's values, by its name.")
    base = _values("baseline", baseline, len(baseline))
    values = {name: _values(name, runs, len(base)) for name, runs in others.items()}
    differences = {name: _differences(own, base) for name, own in values.items()}
    sign = 1 if better == "higher" else -1
    p_values = {name: _p_value(sign * own) for name, own in differences.items()}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    tests = {
        name: PairedTest(
            mean_difference=fmean(values[name]) - fmean(base),
            p_value=p_values[name],
            adjusted=adjusted[name],
            smallest=2.0 ** -int((own != 0).sum()),
            zeros=int((own == 0).sum()),
        )
        for name, own in differences.items()
    }
    return SignificanceTests(tests, better, len(base), _note(len(base), len(others)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given (Holm, 1979).

    The j-th smallest of m (from 0) is multiplied by m - j, and is at least the one before it.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _p_value(gains: Floats) -> float:
    if not gains.any():
        return 1.0
    return float(wilcoxon(gains, alternative="greater").pvalue)


def _differences(own: Floats, base: Floats) -> Floats:
    """The differences, in units of the largest value and rounded to 12 digits."""
    scale = max(float(np.abs(own).max()), float(np.abs(base).max()))
    rounded: Floats = np.round((own - base) / (scale or 1.0), 12)
    return rounded


def _values(name: str, runs: Sequence[Number], seeds: int) -> Floats:
    for run in runs:
        if isinstance(run, Undefined) or not math.isfinite(run):
            raise ValueError(
                f"{name} has a value that is {run}; every seed needs a finite number. Leave out a "
                "seed without one from all methods, and say so."
            )
    if len(runs) != seeds or seeds == 0:
        raise ValueError(
            f"{name} has {len(runs)} values and the baseline {seeds}; the test needs pairs: one "
            "value per seed, in the same order, of at least one seed."
        )
    return np.asarray(runs, np.float64)


def _note(seeds: int, methods: int) -> str:
    smallest = min(1.0, methods * 2.0**-seeds)
    if smallest > 0.05:
        needed = math.ceil(math.log2(methods / 0.05))
        return (
            f"Nothing can be significant with {seeds} paired seeds; for {methods} comparisons that "
            f"takes at least {needed} seeds."
        )
    return (
        f"With {seeds} paired seeds no p-value is below 1/{2**seeds}, and none is below "
        f"{smallest:.3g} after Holm's correction for {methods} comparisons."
    )
