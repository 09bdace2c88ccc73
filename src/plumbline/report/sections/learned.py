"""What a single run has learned: by group beside the baseline, its reliability, and all metrics."""

from __future__ import annotations

from plumbline.fairness import NOT_COVERED, GroupReport
from plumbline.fairness.evaluating import BY_NAME, IN_ORDER, short_title, written
from plumbline.fairness.metrics import ACCURACY, AUC, BASELINE
from plumbline.fairness.regression import BASELINE_RMSE, R2, RMSE
from plumbline.formats import finite
from plumbline.report import figures as f
from plumbline.report.estimates import ALL
from plumbline.report.learning import telling
from plumbline.report.reading import Study, shown_metric
from plumbline.report.section import Figure, Grid, Key, Section
from plumbline.report.sections import reliability

_BASELINES = {ACCURACY: BASELINE, RMSE: BASELINE_RMSE}
_GUESSING = 0.5  # the AUC of guessing
_MANY = 8  # lines for which a figure must be higher


def section(study: Study) -> Section | None:
    """The table of every metric by group; of a comparison, the results have it."""
    if not study.single:
        return None
    report = _report(study)
    names = [name for name in IN_ORDER if finite(report.overall.get(name)) is not None]
    lines = {**report.by_group, ALL: report.overall} if study.groups else {ALL: report.overall}
    sizes = {**report.sizes, ALL: sum(report.sizes.values())}
    rows = [
        [group, f"{sizes[group]:,}", *(written(name, values[name]) for name in names)]
        for group, values in lines.items()
    ]
    small = "" if not report.too_small else f" Too small to judge: {', '.join(report.too_small)}."
    return Section(
        "learned",
        "Every metric, by group",
        "All that was measured on the test records, which were not trained on.",
        [
            Grid(
                ["group", "records", *(short_title(name) for name in names)],
                rows,
                caption=f"Metrics of the test records by group.{small}",
            ),
            *study.table_remarks,
        ],
        NOT_COVERED,
        "The baseline gives every record the class that most have, or of numbers their mean. The "
        "AUC is the chance that a record of the second class is ranked above one of the first. "
        "True and false positive rates are the shares of the second and of the first class that "
        "are predicted to be the second: a gap in these between groups is not explained by how "
        "often each class occurs in them. The loss of classes is the log loss.",
        "docs/fairness.md",
    )


def figures(study: Study) -> list[Figure]:
    """What stands above the fold: each group beside the simplest model, and the reliability."""
    found = [_beside_baseline(study), reliability.figure(study, study.titles[0])]
    return [one for one in found if one is not None]


def _report(study: Study) -> GroupReport:
    return study.runs[study.titles[0]][0].result.report


def _beside_baseline(study: Study) -> Figure:
    report, name = _report(study), telling(study)
    name = RMSE if name == R2 else name
    shown = shown_metric(name)
    lines = {ALL: report.overall, **(report.by_group if study.groups else {})}
    titles = list(lines)
    own = {group: finite(values.get(name)) for group, values in lines.items()}
    base = {
        group: _GUESSING if name == AUC else finite(values.get(_BASELINES[name]))
        for group, values in lines.items()
    }
    simplest = "guessing" if name == AUC else "the baseline"
    traces = []
    for label, values, tint, symbol, size in (
        (simplest, base, "@muted", "circle-open", 16),
        ("the model", own, "@c6", "circle", 10),
    ):
        known = [
            (shown.scale * value, place)
            for place, value in enumerate(values.values())
            if value is not None
        ]
        x, y = [value for value, _ in known], [place for _, place in known]
        marks = f.marks(label, x, y, tint, f"%{{x:.{shown.digits}f}}", symbol=symbol, size=size)
        marks["marker"] |= {"line": {"width": 2, "color": tint}}
        traces.append(marks)
    rows = [[group, written(name, own[group]), written(name, base[group])] for group in titles]
    better = "right" if BY_NAME[name].better == "higher" else "left"
    what = {ACCURACY: "one class for all", AUC: "guessing"}.get(name, "the mean for all")
    many = len(titles) > _MANY
    return Figure(
        "learned-groups",
        f"{shown.title} beside {simplest}",
        f"{shown.title} on the test records, beside that of {what}. Further {better} is better.",
        traces,
        f.by_name(titles, f.axis(shown.axis)),
        Grid(["group", shown.title, simplest], rows, caption=f"{shown.title} and {simplest}"),
        [Key("the model", "@c6"), Key(simplest, "@muted", "ring")],
        height=60 + 34 * len(titles) if many else 340,
        wide=False,
    )
