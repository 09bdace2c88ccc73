"""What metrics come to, in words: the same after ``train``, in a comparison, on the page and card.

Nothing here is covered by epsilon: it repeats metrics of the test records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plumbline.fairness.evaluating import GroupReport
from plumbline.fairness.gaps import gap_of
from plumbline.fairness.metrics import (
    ACCURACY,
    AUC,
    AVERAGE_PRECISION,
    BALANCED,
    BASELINE,
    CALIBRATION,
    EXPECTED,
    LOSS,
    MACRO_F1,
    MOST_PREDICTED,
    TRUE_POSITIVE_RATE,
)
from plumbline.fairness.regression import BASELINE_RMSE, MAE, R2, RMSE
from plumbline.fairness.seeds import Estimate, SeedReport
from plumbline.formats import amount, percent, points
from plumbline.results import Number, Undefined

FEW_RECORDS = 100
"""A test part of fewer records is too small to judge by."""
_RANKS = 0.6  # an AUC from which on a model is said to rank records
_TELLS_APART = 0.55  # a balanced accuracy of two classes that one class for all does not have
_EXPLAINED = 0.8  # the share of a gap that base rates must make up to be called its reason

Report = GroupReport | SeedReport


def remarks(report: Report, subject: str = "The model") -> list[str]:
    """Sentences about one model, or about the mean over several: the most important first."""
    found = [not_better(report, subject), gap_words(report), small_words(report)]
    return [one for one in found if one]


def main_metric(overall: Mapping[str, Any]) -> str:
    """What a model is first judged by: the accuracy, or of numbers the share of variance, R²."""
    return ACCURACY if ACCURACY in overall else R2


def beside_main(overall: Mapping[str, Any]) -> list[str]:
    """The metrics that stand beside the main one where there is room for a few.

    Of two classes the AUC, the average precision and the balanced accuracy; of more the balanced
    accuracy and the macro F1; of numbers the errors; and the loss.
    """
    if main_metric(overall) == R2:
        return [RMSE, MAE, LOSS]
    ranks = _known(overall.get(AUC)) is not None
    more = [AUC, AVERAGE_PRECISION] if ranks else [MACRO_F1]
    return [one for one in (BALANCED, *more, CALIBRATION, LOSS) if one in overall]


def baseline_of(overall: Mapping[str, Any]) -> float | None:
    """What the simplest model has of the main metric: one class for all, or the mean for all."""
    if main_metric(overall) == R2:
        return 0.0
    return _known(overall.get(BASELINE))


def not_better(report: Report, subject: str = "The model") -> str | None:
    """Says that a model gives all records one class, or does not beat the simplest model."""
    overall, records = report.overall, sum(report.sizes.values())
    name = main_metric(overall)
    own, base = _known(overall.get(name)), baseline_of(overall)
    if own is None or base is None:
        return None
    if name == R2:
        rmse, plain = (amount(_known(overall[one])) for one in (RMSE, BASELINE_RMSE))
        return (
            f"{subject} does not beat the mean of the target: its error (RMSE) is {rmse}, that of "
            f"the mean {plain}."
            if own <= 0
            else None
        )
    advice = (
        f" It still ranks records (AUC {_known(overall[AUC]):.3f}): a threshold other than one "
        "half would show that (--threshold auto)."
        if needs_threshold(report)
        else ""
    )
    if _known(overall.get(MOST_PREDICTED)) == 1.0:
        return (
            f"{subject} gives all test records the same class: its accuracy is that class's "
            f"share.{advice}"
        )
    if _beats(own, base, records):
        return None
    balanced = _known(overall.get(BALANCED))
    if _ranks(overall) and balanced is not None and balanced > _TELLS_APART:
        often = "less often" if own < base else "hardly more often"
        return (
            f"{subject} is right {often} than one class for all would be ({percent(own)}, not "
            f"{percent(base)}), as is usual where the threshold is low for a rare class; it tells "
            f"the classes apart: its balanced accuracy is {percent(balanced)}, not 50%."
        )
    clearly = "clearly " if own > base else ""  # by no more than chance may add
    return (
        f"{subject} does not {clearly}beat the baseline: its accuracy is {percent(own)}, and one "
        f"class for all would have {percent(base)}.{advice}"
    )


def needs_threshold(report: Report) -> bool:
    """Whether a model ranks records, and its decisions do not show it."""
    overall = report.overall
    own, base, balanced = (_known(overall.get(one)) for one in (ACCURACY, BASELINE, BALANCED))
    if own is None or base is None or not _ranks(overall):
        return False
    if _known(overall.get(MOST_PREDICTED)) == 1.0:
        return True
    beats = _beats(own, base, sum(report.sizes.values()))
    return not beats and (balanced is None or balanced <= _TELLS_APART)


def _ranks(overall: Mapping[str, Any]) -> bool:
    auc = _known(overall.get(AUC))
    return auc is not None and auc >= _RANKS


def _beats(own: float, base: float, records: int) -> bool:
    """Whether an accuracy is above the baseline by its standard error on so many records."""
    return own > base + math.sqrt(own * (1 - own) / max(1, records))


def gap_words(report: Report) -> str | None:
    """The largest gap between groups in the main metric, and whether base rates explain it."""
    if len(report.by_group) < 2:
        return None
    name = main_metric(report.overall)
    if name == R2:
        return _error_gap_words(report)
    gap = _gap(report, ACCURACY)
    if gap is None:
        return None
    size, between, (high, low) = gap
    text = f"Accuracy differs by {points(size)} points between groups"
    of_high, of_low = (_known(report.by_group[group].get(EXPECTED)) for group in (high, low))
    if of_high is None or of_low is None or of_high - of_low < _EXPLAINED * size:
        text += f" ({between})."
    else:
        text += (
            f" ({between}), which their base rates explain: if it recognised each class equally "
            f"well in all groups, it would differ by {points(of_high - of_low)} points."
        )
    rates = _gap(report, TRUE_POSITIVE_RATE)
    if rates is None or _known(report.overall.get(MOST_PREDICTED)) == 1.0:
        return text
    return f"{text} True positive rates differ by {points(rates[0])} points ({rates[1]})."


def _error_gap_words(report: Report) -> str | None:
    gap = _gap(report, RMSE)
    if gap is None:
        return None
    size, between, (high, low) = gap
    text = f"The error (RMSE) differs by {amount(size)} between groups ({between})"
    share = _known(report.overall.get(R2))
    of_high, of_low = (_known(report.by_group[one].get(BASELINE_RMSE)) for one in (high, low))
    if share is None or of_high is None or of_low is None:
        return f"{text}."
    alike = math.sqrt(max(0.0, 1 - share)) * (of_high - of_low)
    if alike < _EXPLAINED * size:
        return f"{text}."
    return (
        f"{text}, which the spread of their values explains: if it explained the same share of the "
        f"variance in all groups, it would differ by {amount(alike)}."
    )


def small_words(report: Report) -> str | None:
    """Says that the test part, or some groups, have too few records to judge by."""
    records = sum(report.sizes.values())
    said = []
    if records < FEW_RECORDS:
        said.append(f"The test part has {records} records: too few to judge a model by.")
    if report.too_small:
        said.append(f"Too few records to judge: {', '.join(report.too_small)}.")
    return " ".join(said) or None


def largest_gap(report: Report) -> tuple[str, float, str] | None:
    """The metric whose gap between groups is told first, the gap, and the two groups in words.

    That is the true positive rate where there is one, since base rates do not explain it.
    """
    regression = main_metric(report.overall) == R2
    for name in (RMSE,) if regression else (TRUE_POSITIVE_RATE, ACCURACY):
        if name in report.overall and (gap := _gap(report, name)) is not None:
            return name, gap[0], gap[1]
    return None


def _gap(report: Report, name: str) -> tuple[float, str, tuple[str, str]] | None:
    values = {group: _plain(own.get(name)) for group, own in report.by_group.items()}
    judged = tuple(group for group in report.sizes if group not in report.too_small)
    gap = gap_of(values, judged)
    if isinstance(gap.value, Undefined) or gap.highest is None or gap.lowest is None:
        return None
    if gap.highest == gap.lowest:  # all are equal
        return None
    return gap.value, f"{gap.highest}, {gap.lowest}", (gap.highest, gap.lowest)


def _plain(value: Any) -> Number:
    if isinstance(value, Estimate):
        value = value.mean
    return Undefined("not measured") if value is None else value


def _known(value: Any) -> float | None:
    value = _plain(value)
    return None if isinstance(value, Undefined) else float(value)
