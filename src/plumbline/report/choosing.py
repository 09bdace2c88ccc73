"""Which rows of a study are spoken of, and what the diagnostics say of them."""

from __future__ import annotations

from plumbline.diagnostics import Bias, ErrorParts, Evidence, Verdict, verdict
from plumbline.report.learning import mean_of, telling
from plumbline.report.measured import Bend, bend, mean, mean_reading
from plumbline.report.reading import Study


def reference(study: Study) -> str | None:
    """The private method that others are measured against: the baseline, or plain DP-SGD."""
    private = study.private
    order = [study.recipe.baseline, *(t for t in private if study.part(t).name == "dpsgd")]
    chosen = next((title for title in order if title in private), None)
    if chosen is None:
        chosen = private[0] if private else None
    if chosen is None:
        return None
    # Of rows that differ in where their settings come from, the one that is not tuned.
    same = [t for t in private if study.base(t) == study.base(chosen)]
    return next((t for t in same if study.part(t).origin != "tuned"), chosen)


def best(study: Study) -> str | None:
    """The private method that does best by the metric that tells methods apart."""
    metric = telling(study)
    known = {
        title: value
        for title in study.private
        if (value := mean_of(study, title, metric)) is not None
    }
    return max(known, key=lambda title: known[title]) if known else None


def better_settings(study: Study, title: str) -> str | None:
    """Another row of the same method on the same network and data: tuned, or at another rate."""

    def trained(row: str) -> tuple[object, ...]:
        spec = study.spec(row)
        return study.part(row).name, spec.model, spec.data

    others = [t for t in study.private if t != title and trained(t) == trained(title)]
    tuned = [t for t in others if study.part(t).origin == "tuned"]
    settings = study.part(title).settings
    same = [t for t in others if study.part(t).settings == settings]
    known = {t: value for t in tuned or same if (value := accuracy(study, t)) is not None}
    return max(known, key=lambda t: known[t]) if known else None


def diagnosis(study: Study, title: str) -> Verdict | None:
    """The diagnostics' own verdict on a method, from the median of its readings."""
    bent = bend(study.runs[title])
    if bent is None:
        return None
    row = study.row(title)
    costs = {} if row.cost is None else row.cost.privacy_cost.by_group
    return verdict(
        Evidence(
            bias=_bias(bent),
            errors=None if bent.noise is None else _errors(bent.noise * bent.size**2),
            steps=study.runs[title][0].result.steps,
            cost_by_group={g: 100 * v for g, e in costs.items() if (v := mean(e)) is not None},
            direction_by_group=direction_risk(study, title),
            method=study.part(title).name,
            optimizer=study.spec(title).optimizer.name,
        )
    )


def direction_risk(study: Study, title: str) -> dict[str, float]:
    """Each group's R_dir, the mean over all readings; empty where it was not measured."""
    found = {
        group: mean_reading(study, title, "excessive_risk", group, "direction")
        for group in study.groups
    }
    return {group: value for group, value in found.items() if value is not None}


def accuracy(study: Study, title: str) -> float | None:
    """A method's mean accuracy (or R²), if it has one."""
    return mean(study.row(title).seeds.overall[study.main])


def _bias(bent: Bend) -> Bias:
    return Bias(
        gradient_norm=bent.size,
        clipped_norm=bent.length * bent.size,
        norm=bent.norm,
        relative=bent.relative,
        magnitude=bent.kept,
        direction=bent.turned * bent.size,
        relative_direction=bent.turned,
        cosine=bent.cosine,
    )


def _errors(noise: float) -> ErrorParts:
    return ErrorParts(0.0, noise, 0.0, noise)
