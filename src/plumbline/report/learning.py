"""What was learned, in words: of one run, of methods beside the simplest model, at each epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plumbline.fairness.evaluating import BY_NAME, written
from plumbline.fairness.metrics import (
    ACCURACY,
    AUC,
    BALANCED,
    BASELINE,
    FALSE_POSITIVE_RATE,
    MOST_PREDICTED,
    TRUE_POSITIVE_RATE,
)
from plumbline.fairness.regression import BASELINE_RMSE, R2, RMSE
from plumbline.fairness.remarks import (
    baseline_of,
    gap_words,
    needs_threshold,
    not_better,
    small_words,
)
from plumbline.formats import listed, percent, tiny
from plumbline.mechanism.rounding import rounded_up
from plumbline.report.measured import mean
from plumbline.report.reading import Study

_RANKS = 0.55  # an AUC below which nothing is ranked
_RATES = (TRUE_POSITIVE_RATE, FALSE_POSITIVE_RATE)


def learned(study: Study) -> str:
    """What a single run has learned, in a sentence: first what tells most."""
    title = study.titles[0]
    row = study.row(title)
    overall = {name: one.mean for name, one in row.seeds.overall.items()}
    at = f"At epsilon {rounded_up(row.epsilon)} (delta {tiny(study.recipe.budget.delta)})"
    at = at if math.isfinite(row.epsilon) else "Without a guarantee"
    if study.main == R2:
        what = study.recipe.data.options.get("target", "the target")
        return (
            f"{at}, {title} predicts {what} with an error (RMSE) of {written(RMSE, overall[RMSE])},"
            f" where the mean for all has {written(BASELINE_RMSE, overall[BASELINE_RMSE])}: it "
            f"explains {percent(overall[R2])} of the variance."
        )
    right = f"is right for {percent(overall[ACCURACY])} of the test records"
    if BASELINE in overall:
        right += f", and one class for all would be right for {percent(overall[BASELINE])}"
    if not isinstance(auc := overall.get(AUC), float):
        balanced = overall.get(BALANCED)
        more = f"; its balanced accuracy is {percent(balanced)}" if balanced is not None else ""
        return f"{at}, {title} {right}{more}."
    ranks = f"ranks them with an AUC of {auc:.3f} (0.5 is guessing)"
    if telling(study) == AUC:
        ranks = ranks.replace("them", "the test records")
        return f"{at}, {title} {ranks}; it {right.replace('the test records', 'them')}."
    return f"{at}, {title} {right}; it {ranks}."


def no_better_than_nothing(study: Study) -> str:
    """Methods that give all records one class or do not beat the simplest model; few records."""
    first = study.row(study.titles[0]).seeds
    if study.single:
        said = [_decided(study), gap_words(first), small_words(first)]
        return " ".join(one for one in said if one)
    poor = [t for t in study.titles if not_better(study.row(t).seeds) is not None]
    if len(poor) < 2:
        said = [not_better(study.row(title).seeds, title) for title in poor]
    else:
        said = [_not_better_together(study, poor)]
    return " ".join(one for one in (*said, small_words(first)) if one)


def nothing_learned(study: Study) -> bool:
    """Whether no method of a comparison beats the simplest model, nor ranks records."""
    poor = all(not_better(study.row(title).seeds) is not None for title in study.titles)
    return poor and not study.single and telling(study) != AUC


def _not_better_together(study: Study, titles: Sequence[str]) -> str:
    """One sentence for several methods that do not beat the simplest model."""
    who = listed(titles)
    if len(titles) == len(study.titles):
        who = "None of the methods"
    elif set(titles) == set(study.private):
        who = "None of the private methods"
    base = baseline_of(study.row(titles[0]).seeds.overall)
    own = (mean_of(study, title, study.main) for title in titles)
    above = base is not None and any(one is not None and one > base for one in own)
    clearly = "clearly " if above else ""  # above it by no more than chance may add
    verb = f"{clearly}beats" if who.startswith("None") else f"do not {clearly}beat"
    if study.main == R2:
        return f"{who} {verb} the mean of the target."
    text = f"{who} {verb} the accuracy of one class for all ({percent(base)})."
    if any(needs_threshold(study.row(title).seeds) for title in titles):
        known = [v for t in titles if (v := mean_of(study, t, AUC)) is not None]
        text += (
            f" They still rank records (AUC {min(known):.3f} to {max(known):.3f}), which another "
            "threshold would show (--threshold auto)."
        )
    return text


def _decided(study: Study) -> str | None:
    """What a single run's decisions come to: of two classes, whom it finds and whom it takes."""
    report = study.row(study.titles[0]).seeds
    classes = study.runs[study.titles[0]][0].result.classes
    found, taken = (mean_of(study, study.titles[0], one) for one in _RATES)
    if len(classes) != 2 or found is None or taken is None:
        return not_better(report, "It")
    no, yes = (f"“{name}”" for name in classes)
    advice = ""
    if needs_threshold(report):
        advice = f" Another threshold finds more that are {yes} (--threshold auto)."
    if mean_of(study, study.titles[0], MOST_PREDICTED) == 1.0:
        given = no if found == 0 else yes
        return f"It gives all test records the same class, {given}.{advice}"
    return (
        f"It finds {percent(found)} of the records that are {yes}, and takes {percent(taken)} of "
        f"those that are {no} for one.{advice}"
    )


def epsilons(study: Study) -> str:
    """What each epsilon reaches, where there are several; a table says what each means."""
    if len(study.epsilons) < 2:
        return ""
    metric = telling(study)
    reached = [
        f"{written(metric, value)} at epsilon {epsilon:g}"
        for epsilon, (_, value) in best_at_epsilons(study).items()
    ]
    free = [v for t in study.titles if study.is_free(t) if (v := mean_of(study, t, metric))]
    beside = f"; without privacy {written(metric, max(free))}" if free else ""
    return f"By {BY_NAME[metric].title}, the best private model reaches {listed(reached)}{beside}."


def best_at_epsilons(study: Study) -> dict[float, tuple[str, float]]:
    """The private row that does best at each epsilon, with its value of the metric that tells."""
    metric, found = telling(study), {}
    for epsilon in study.epsilons:
        rows = [one for t in study.private if (one := study.at_epsilons(t).get(epsilon))]
        known = {one: v for one in rows if (v := mean_of(study, one, metric)) is not None}
        if known:
            top = max(known, key=lambda title: known[title])
            found[epsilon] = (top, known[top])
    return found


def telling(study: Study) -> str:
    """The metric that tells methods apart: the AUC where some do not beat one class for all."""
    poor = any(not_better(study.row(title).seeds) is not None for title in study.titles)
    found = [mean_of(study, title, AUC) for title in study.titles]
    known = [one for one in found if one is not None]
    ranks = len(known) == len(found) and max(known) >= _RANKS
    return AUC if poor and ranks else study.main


def in_order(study: Study) -> list[str]:
    """The metrics that have figures, the one that tells methods apart first."""
    first = telling(study)
    return sorted(study.metrics, key=lambda metric: metric != first)


def mean_of(study: Study, title: str, metric: str) -> float | None:
    """A metric's mean over a method's runs, if it has one."""
    found = study.row(title).seeds.overall.get(metric)
    return None if found is None else mean(found)


def ranking_cost(study: Study, title: str, at_epsilon: str, *, tuned: bool) -> str:
    """What privacy costs in AUC, where accuracy does not tell."""
    found = _both_rankings(study, title)
    if found is None:
        return ""
    own, other = found
    lost = other - own
    much = "no AUC" if lost <= 0 else f"{lost:.3f} of AUC"
    first = f"Tuned, privacy costs {much}." if tuned else f"Privacy costs {much}."
    return (
        f"{first} {at_epsilon}, {title} ranks the test records with an AUC of {own:.3f}, and the "
        f"same network without privacy with {other:.3f} (0.5 is guessing); accuracy does not tell "
        "them apart here."
    )


def ranking(study: Study, title: str) -> str:
    """The AUC beside that of the non-private runs, where there are two classes."""
    found = _both_rankings(study, title)
    if found is None:
        return ""
    own, other = found
    return f" Its AUC is {own:.3f}, that without privacy {other:.3f}."


def _both_rankings(study: Study, title: str) -> tuple[float, float] | None:
    """A method's AUC, and that of the non-private row that it is compared with: tuned if it is."""
    free = [t for t in study.titles if study.is_free(t)]
    same = [t for t in free if study.part(t).origin == study.part(title).origin]
    own = mean_of(study, title, AUC)
    other = mean_of(study, (same or free)[0], AUC) if free else None
    return None if own is None or other is None else (own, other)
