"""How much depends on the learning rate: the trials that tuned each method."""

from __future__ import annotations

from typing import Any

from plumbline.experiments.recipe_parts import WORST
from plumbline.fairness import NOT_COVERED
from plumbline.fairness.evaluating import BY_NAME
from plumbline.formats import finite, short
from plumbline.report import figures as f
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Section
from plumbline.report.sections.settings import written


def section(study: Study) -> Section | None:
    """The score of every trial against its learning rate, and the best at each."""
    if study.tuning is None:
        return None
    trials: dict[str, list[tuple[float, float, dict[str, Any]]]] = {}
    for trial in study.tuning.get("trials", []):
        rate, score = finite(trial.get("learning_rate")), finite(trial.get("score"))
        if rate is not None and score is not None:
            trials.setdefault(str(trial["method"]), []).append((rate, score, trial))
    if not trials:
        return None
    objective = str(study.tuning.get("objective", study.recipe.tune.objective))
    lower = BY_NAME[objective.removeprefix(WORST)].better == "lower"
    traces: list[dict[str, Any]] = []
    keys, rows = [], []
    for place, (title, own) in enumerate(trials.items()):
        tint = _tint(study, title, place)
        own.sort(key=lambda one: one[0])
        keys.append(Key(title, tint, "line"))
        traces += _traces(title, [(rate, score) for rate, score, _ in own], tint, lower)
        rows += [
            [title, short(rate), short(score, 4), written(trial.get("settings") or {}) or "–"]
            for rate, score, trial in own
        ]
    figure = Figure(
        "sensitivity-rate",
        "",
        f"Each dot is a trial, judged by its {objective} on records held out of the training part "
        f"({'lower' if lower else 'higher'} is better); lines follow the best trials. A wide flat "
        f"{'bottom' if lower else 'top'} is easy to find.",
        traces,
        {
            "xaxis": f.log_axis("learning rate", dtick=1),
            "yaxis": f.axis(objective),
            "hovermode": "closest",
        },
        Grid(["method", "learning rate", objective, "settings"], rows, caption="Trials"),
        keys,
        height=400,
    )
    return Section(
        "sensitivity",
        "Sensitivity to the learning rate",
        "Whether a method is better, or was only tuned better.",
        [figure],
        str(study.tuning.get("not_covered") or NOT_COVERED),
        "Trials were judged on records held out of the training part. Unless the trials were "
        "charged too, tuning is outside the guarantee.",
    )


def _traces(
    title: str, trials: list[tuple[float, float]], tint: str, lower: bool
) -> list[dict[str, Any]]:
    """The trials as dots, and a line through those that no trial nearby beats."""
    best: list[tuple[float, float]] = []
    for place, (rate, score) in enumerate(trials):
        near = [s for other, s in trials if 0.6 < other / rate < 1 / 0.6]
        if score == (min(near) if lower else max(near)) or place in (0, len(trials) - 1):
            best.append((rate, score))
    (x, y), (best_x, best_y) = zip(*trials, strict=True), zip(*best, strict=True)
    return [
        f.marks(title, x, y, tint, "at %{x:.3g}: %{y:.4g}", size=8, opacity=0.55),
        {**f.path(title, best_x, best_y, tint, ""), "hoverinfo": "skip"},
    ]


def _tint(study: Study, title: str, place: int) -> str:
    """The colour of the row, or of the method that it tunes."""
    if title in study.runs:
        return f.colour(study, title)
    same = [one for one in study.titles if study.base(one) == title]
    return f.colour(study, same[0]) if same else f.group_colour(place)
