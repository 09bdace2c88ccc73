"""The verdict on a comparison: a few plain sentences, each resting on numbers that are there.

What private training cost each group, how much of that was the settings, what clipping did to the
gradient, which method is best and whether the seeds can tell. Thresholds are those of
``plumbline.diagnostics.verdict``; what the numbers do not support is not said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from plumbline.diagnostics import Undefined
from plumbline.diagnostics.verdict import UNEVEN
from plumbline.fairness import Estimate, compare_to
from plumbline.fairness.evaluating import written
from plumbline.fairness.metrics import AUC
from plumbline.formats import listed, number, percent, points, short, tiny
from plumbline.mechanism.rounding import rounded_up
from plumbline.report.choosing import (
    best,
    better_settings,
    diagnosis,
    direction_risk,
    reference,
)
from plumbline.report.learning import (
    epsilons,
    learned,
    mean_of,
    no_better_than_nothing,
    nothing_learned,
    ranking,
    ranking_cost,
    telling,
)
from plumbline.report.measured import Bend, bend, error, mean
from plumbline.report.reading import Study

SIGNIFICANT = 0.05
_MUCH_LOSS = 0.02
_FEW = 0.005
"""A cost below half a point of accuracy is not split any further."""


def words(study: Study) -> list[str]:
    """Two to six sentences or short paragraphs, the most important first."""
    first = [_cost(study), no_better_than_nothing(study), _settings(study)]
    if nothing_learned(study):
        first = [f"{first[1]} So what privacy costs cannot be told here."]
    said = [
        *first,
        _clipping(study),
        _best(study),
        epsilons(study),
        _schema(study),
        _unprotected(study),
        _together(study),
        _left_out(study),
    ]
    return [one for one in said if one]


def _cost(study: Study) -> str:
    if study.single:
        return learned(study)
    title = reference(study)
    if title is None:
        return "None of these methods has a privacy guarantee, so there is no cost of privacy here."
    tuned = better_settings(study, title)
    news = ""
    if tuned is not None and study.part(tuned).origin == "tuned" and study.row(tuned).cost:
        title, news = tuned, "Tuned, privacy costs {}. "
    row = study.row(title)
    at_epsilon = f"At epsilon {rounded_up(row.epsilon)} (delta {tiny(study.recipe.budget.delta)})"
    if row.cost is None:
        reached = _share(row.seeds.overall[study.main])
        by_group = [f"{g} {_share(row.seeds.by_group[g][study.main])}" for g in study.groups]
        beside = f" ({', '.join(by_group)})" if by_group else ""
        return (
            f"{at_epsilon}, {title} reached {_an(study)} of {reached}{beside}. Without a "
            "non-private run beside it, what privacy cost cannot be said."
        )
    cost = row.cost.privacy_cost
    if telling(study) == AUC:
        in_auc = ranking_cost(study, title, at_epsilon, tuned=bool(news))
        if in_auc:
            return in_auc
    if news:
        whole = mean(cost.overall)
        much = f"{points(whole)} points of {study.main_title}"
        much = "nothing" if whole is not None and whole <= 0 else much
        news = news.format(much)
    named = {group: cost.by_group[group] for group in _told(study, title)}
    spread = "one seed cannot say how sure that is"
    if study.seeds > 1:
        spread = f"± is the standard error over {study.seeds} seeds"
    lost = _lost(named or {"": cost.overall}, f" points of {study.main_title}")
    return (
        f"{news}{at_epsilon}, {title} {lost}, against the same network trained without privacy "
        f"({spread}).{ranking(study, title)}"
    )


def _settings(study: Study) -> str:
    """How much of the cost goes away with other settings of the same method."""
    title = reference(study)
    other = None if title is None else better_settings(study, title)
    if title is None or other is None or telling(study) == AUC:
        return ""
    before, after = (study.row(one).cost for one in (title, other))
    if before is None or after is None:
        return ""
    old, new = mean(before.privacy_cost.overall), mean(after.privacy_cost.overall)
    if old is None or new is None or old < _FEW:
        return ""
    rates = [study.spec(one).optimizer.learning_rate for one in (title, other)]
    only_rate = study.part(title).settings == study.part(other).settings
    if only_rate and rates[0] == rates[1]:
        return ""  # the search found the settings that there were
    what = "the learning rate" if only_rate else "its settings"
    changed = f"at learning rate {rates[1]:g} instead of {rates[0]:g}"
    part = (old - new) / old
    spread = [error(one.privacy_cost.overall) for one in (before, after)]
    unsure = all(s is not None for s in spread) and abs(old - new) < 2 * math.hypot(
        *(s or 0.0 for s in spread)
    )
    if part <= 0.05:
        return (
            f"Other settings do not help: {other} lost {points(new)} points overall, {title} "
            f"{points(old)}."
        )
    now = "nothing" if new <= 0 else f"{points(new)} points"
    share = "all" if part >= 0.995 else percent(part, digits=0)
    doubt = " The seeds vary about as much as that." if unsure else ""
    if new < -_FEW:
        doubt += " The non-private runs were not at their best either."
    return (
        f"Of the {points(old)} points that {title} lost, {share} was {what}, not privacy: {other}, "
        f"{changed}, lost {now} overall.{doubt}"
    )


def _clipping(study: Study) -> str:
    """What clipping did in the reference method: as tuned, where that still costs something."""
    title = reference(study)
    if title is None:
        return ""
    tuned = better_settings(study, title)
    if tuned is not None and not _still_costs(study, tuned):
        return _loss_left(study, tuned)
    if tuned is not None and bend(study.runs[tuned]) is not None:
        title = tuned
    bent, found = bend(study.runs[title]), diagnosis(study, title)
    if bent is None or found is None:
        return ""
    if bent.kept <= 0:
        return (
            f"Clipping in {title} turned the gradient around in the median reading: its steps "
            "raised the loss."
        )
    text = (
        f"Clipping in {title} left {_digits(100 * bent.kept)}% of the gradient's length in its own "
        f"direction and turned it by {bent.degrees:.0f} degrees (cosine {bent.cosine:.2f}); "
        f"{_told_bias(bent)}"
    )
    if bent.readings == 1:
        text += "; one reading, after the last step, where noise looks largest"
    turned = f"{bent.turned / bent.kept:.2f} times what is left"
    if found.cause == "clipping direction":
        return (
            f"{text}.{_uphill(study, title)} The direction error, {turned}, is what hurts most, "
            f"and no learning rate mends it.{_who(study, title)}"
        )
    if found.cause == "clipping magnitude":
        return (
            f"{text}: mostly an error of length, which a learning rate {1 / bent.kept:.3g} times "
            f"as large makes up for; the direction error is {turned}."
        )
    if found.cause == "noise":
        noise = next(one.text for one in found.findings if one.rule == "noise")
        return f"Noise costs more here than clipping. {text}.{_uphill(study, title)} {noise}"
    return f"{text}. Neither clipping nor noise costs much here."


def _loss_left(study: Study, tuned: str) -> str:
    """What a method that costs no accuracy any more still costs in loss, and which costs least."""
    left = {title: _added(study, title) for title in study.private}
    own, bent = left.get(tuned), bend(study.runs[tuned])
    if own is None or own < _MUCH_LOSS or bent is None or bent.kept <= 0:
        return ""
    text = (
        f"What is left is in the loss: that of {tuned} is {own:.2f} above the non-private one, and "
        f"clipping turns its gradient by {bent.degrees:.0f} degrees, which no learning rate mends "
        f"({_told_bias(bent)})."
    )
    known = {title: value for title, value in left.items() if value is not None}
    least = min(known, key=lambda title: known[title])
    if least == tuned:
        return text
    gap = round(known[least], 2)
    where = f"{gap:.2f} above" if gap > 0 else f"{-gap:.2f} below" if gap else "as low as it"
    return f"{text} {least} is {where}."


def _added(study: Study, title: str) -> float | None:
    cost = study.row(title).cost
    return None if cost is None else mean(cost.excessive_risk.overall)


def _still_costs(study: Study, title: str) -> bool:
    cost = study.row(title).cost
    lost = None if cost is None else mean(cost.privacy_cost.overall)
    return lost is None or lost >= _FEW


def _uphill(study: Study, title: str) -> str:
    """Whether the clipped gradient points backwards at the end of training."""
    end = bend(study.runs[title], last=True)
    if end is None or end.kept >= 0:
        return ""
    return f" At the end of training it pointed backwards (cosine {end.cosine:.2f})."


def _who(study: Study, title: str) -> str:
    risk = direction_risk(study, title)
    if len(risk) < 2:
        return ""
    order = sorted(risk, key=lambda group: -risk[group])
    first, second = (risk[group] for group in order[:2])
    return f" It costs {order[0]} the most." if first > max(0.0, UNEVEN * second) else ""


def _best(study: Study) -> str:
    first, title, metric = reference(study), best(study), telling(study)
    if first is None or title is None or len(study.private) < 2:
        return ""
    tuned = better_settings(study, first)
    if tuned is not None and study.part(title).origin == study.part(tuned).origin == "tuned":
        first = tuned  # what is tuned is measured against what is
    own = study.row(title).seeds.overall[metric]
    reached = written(metric, own.mean, own.standard_error)
    if title == first:
        how = "ranks records better" if metric == AUC else "is more accurate"
        return f"No other private method here {how} than {first} ({reached})."
    gain = (mean_of(study, title, metric) or 0.0) - (mean_of(study, first, metric) or 0.0)
    much = f"{gain:.3f}" if metric == AUC else f"{points(gain)} points"
    what = "private method that ranks best" if metric == AUC else "most accurate private method"
    sure = _significance(study, first, title)
    text = f"The {what} is {title}: {reached}, {much} above {first}{sure}."
    cost = study.row(title).cost
    if cost is not None and study.groups and metric != AUC:
        named = {group: cost.privacy_cost.by_group[group] for group in _told(study, first)}
        text += f" It {_lost(named, ' points')}."
    bent, plain = bend(study.runs[title]), bend(study.runs[first])
    if bent is not None and plain is not None and bent.kept > 0 and plain.kept > 0:
        text += (
            f" Its clipping turns the gradient by {bent.degrees:.0f} degrees, that of {first} by "
            f"{plain.degrees:.0f}; the bias is {number(bent.relative, digits=2)} and "
            f"{number(plain.relative, digits=2)} times the gradient's length (norms "
            f"{short(bent.norm)} and {short(plain.norm)})."
        )
    return text


def _significance(study: Study, first: str, title: str) -> str:
    metric = telling(study)
    others = {t: study.row(t).seeds.overall[metric].per_run for t in study.private}
    base = others.pop(first)
    values = [*base, *(value for own in others.values() for value in own)]
    if study.seeds < 2:
        return ", on one seed, which cannot tell that from chance"
    if any(isinstance(value, Undefined) for value in values):
        return ""
    tests = compare_to(base, others)
    p, count = tests.tests[title].adjusted, len(others)
    if count * 2.0**-study.seeds > SIGNIFICANT:
        needed = math.ceil(math.log2(count / SIGNIFICANT))
        many = "one comparison" if count == 1 else f"{count} comparisons"
        return (
            f"; with {study.seeds} seeds no such difference can be significant ({many} would take "
            f"{needed})"
        )
    how = f"p = {p:.3f}, Wilcoxon's test over {study.seeds} seeds with Holm's correction"
    return f" ({how})" if p <= SIGNIFICANT else f", which is not significant ({how})"


def _together(study: Study) -> str:
    """What all runs have cost, where there are more than the table shows or than one."""
    found = study.totals
    if study.single or (found.everything.runs < 2 and not found.shared):
        return ""
    tuned = ["Tuning on private records costs privacy too."] if study.tuning is not None else []
    said = found.sentences if found.shared else [found.everything_words]
    return " ".join([*said, *tuned])


def _unprotected(study: Study) -> str:
    names = [t for t in study.titles if t not in study.private and not study.is_free(t)]
    if not names:
        return ""
    have = "has" if len(names) == 1 else "have"
    return f"{listed(names)} {have} no privacy guarantee, whatever noise there is."


def _schema(study: Study) -> str:
    """That the table's schema was found privately, which no row of a comparison is without."""
    if study.single or study.recipe.data.found is None:
        return ""
    return (
        "What was not declared of the table was found privately, and every row learns from that, "
        "the one without privacy too: what a range that is too narrow or a column that was left "
        "out costs is not in these numbers. Declare what you know to see it (`plumbline data "
        "schema`)."
    )


def _left_out(study: Study) -> str:
    return f"Left out: {'; '.join(study.left_out)}." if study.left_out else ""


def _told(study: Study, title: str) -> list[str]:
    """The groups to name: all if there are few, else who pays most and who least."""
    cost = study.row(title).cost
    if cost is None or len(study.groups) <= 3:
        return study.groups
    known = {g: v for g in study.groups if (v := mean(cost.privacy_cost.by_group[g])) is not None}
    order = sorted(known, key=lambda group: -known[group])
    return [order[0], order[-1]] if len(order) > 1 else order


def _lost(costs: Mapping[str, Estimate], unit: str) -> str:
    """What a method lost or gained, for whom; the unit is said once."""
    parts, verb = [], ""
    for group, estimate in costs.items():
        value, spread = mean(estimate), error(estimate)
        if value is None:
            continue
        said = points(abs(value), spread)
        own = "gained" if value < 0 and points(-value) != points(0.0) else "lost"
        beside = f" for {group}" if group else ""
        parts.append(f"{f'{own} ' if own != verb else ''}{said}{'' if verb else unit}{beside}")
        verb = own
    return listed(parts) or "lost an unknown amount"


def _an(study: Study) -> str:
    """The main metric with its article."""
    return "an accuracy" if study.main_title == "accuracy" else f"an {study.main_title}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1g}"


def _share(estimate: Estimate) -> str:
    return percent(estimate.mean, estimate.standard_error)


def _told_bias(bent: Bend) -> str:
    """The norm alone would hide that a gradient is not turned back."""
    return f"the bias is {bent.relative:.2f} times its length (norm {short(bent.norm)})"
