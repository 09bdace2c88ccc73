"""``reproduce``: a paper's table or figure, its published numbers beside ours, and a verdict.

A reproduction is two files below ``recipes/papers``: NAME.toml says how the numbers are made (a
study, and the recipe or settings that it works on, at a quick size and at the paper's own), and
NAME.published.toml has what the paper printed: values, and claims as inequalities between values.
A study is a function from settings to measurements; ``STUDIES`` has them by name.

A value or claim is judged at the paper's settings, and claims also where every method was tuned
alike: what holds only while the methods are tuned unequally is "explained by tuning".
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from plumbline.experiments.pool import Told
from plumbline.experiments.recipe import Part, RecipeError, known, wrong_fields
from plumbline.experiments.recipes import folder as recipes_folder
from plumbline.experiments.studies import STUDIES, Measured, Measurements

Size = Literal["quick", "paper"]


class Verdict(StrEnum):
    """What came of a value or a claim."""

    REPRODUCED = "reproduced"
    DIRECTION = "reproduced in direction only"
    NOT = "not reproduced"
    TUNING = "explained by tuning"
    MISSING = "not measured"


class Published(Part):
    """One row of published values: all of them within the tolerance, or not.

    Attributes:
        row: The row.
        values: Metric to value, such as "accuracy / male" to 80.5.
    """

    row: str
    values: dict[str, float]


Inequality = tuple[str | float, str | float, float]
_MINUS = " minus "


class Claim(Part):
    """A claim of the paper: some values lie above others.

    What holds, but by less than claimed, is reproduced in direction only.

    Attributes:
        says: In words.
        above: (this, that, by at least this much): keys "row / metric", or numbers, or the
            difference of two keys, "this minus that".
        times: (this, that, at least so many times that), the same way.
    """

    says: str
    above: tuple[Inequality, ...] = ()
    times: tuple[Inequality, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> Claim:
        if not self.above + self.times:
            raise ValueError(f"the claim {self.says!r} has neither 'above' nor 'times'")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The values that it is about."""
        sides = [side for this, that, _ in self.above + self.times for side in (this, that)]
        given = [side.split(_MINUS) for side in sides if isinstance(side, str)]
        return tuple(key for keys in given for key in keys)


class PublishedFile(Part):
    """NAME.published.toml.

    Attributes:
        source: Paper and table.
        notes: What a reader must know about the numbers: disagreements, corrections.
        tolerance: How far our mean may lie from a published value, by the metric's first word.
        reference: The row that the direction of the others is told from.
        rows: What was published.
        claims: What the paper says of it.
    """

    source: str
    notes: tuple[str, ...] = ()
    tolerance: dict[str, float] = Field(default_factory=dict)
    reference: str | None = None
    rows: tuple[Published, ...] = ()
    claims: tuple[Claim, ...] = ()

    @model_validator(mode="after")
    def _has_tolerances(self) -> PublishedFile:
        metrics = {metric.split(" / ")[0] for row in self.rows for metric in row.values}
        if missing := sorted(metrics - set(self.tolerance)):
            raise ValueError(f"there is no tolerance for {', '.join(missing)}")
        return self


class ReproductionFile(Part):
    """NAME.toml.

    Attributes:
        title: What is reproduced.
        study: Name of one of ``STUDIES``.
        settings: For the study; a recipe, mostly.
        quick: What differs at the quick size, table within table.
        minutes: About how long each size takes on two cores.
    """

    title: str
    study: str
    settings: dict[str, Any]
    quick: dict[str, Any] = Field(default_factory=dict)
    minutes: dict[Size, float]

    def at(self, size: Size) -> dict[str, Any]:
        """The settings at a size."""
        return merged(self.settings, self.quick) if size == "quick" else self.settings


@dataclass(frozen=True)
class Line:
    """A published value or claim beside ours.

    Attributes:
        what: The value's row and metric, or the claim in words.
        published: The value; None for a claim.
        ours: At the paper's settings; None where it was not measured.
        tuned: Where every method was tuned alike, if that was measured.
        verdict: What came of it.
    """

    what: str
    verdict: Verdict
    published: float | None = None
    ours: Measured | None = None
    tuned: Measured | None = None


@dataclass(frozen=True)
class Reproduction:
    """A reproduced table or figure.

    Attributes:
        name: The files' name.
        title: What is reproduced.
        size: At which size.
        source: Paper and table.
        notes: From the published file.
        values: Published values beside ours.
        rows: The verdict for each row of values.
        claims: The paper's claims.
        compared: The values that the claims are about.
        folder: Where the runs are.
    """

    name: str
    title: str
    size: Size
    source: str
    notes: tuple[str, ...]
    values: tuple[Line, ...]
    rows: dict[str, Verdict]
    claims: tuple[Line, ...]
    compared: frozenset[str] = field(repr=False)
    measurements: Measurements = field(repr=False)
    folder: str = ""

    def __str__(self) -> str:
        """In Markdown."""
        lines = [f"## {self.title}", "", f"{self.source}. Size: {self.size}. "]
        lines[-1] += f"Command: `plumbline reproduce {self.name} --size {self.size}`."
        if self.values:
            lines += [
                "",
                "| value | published | ours | tuned alike |",
                "| --- | ---: | ---: | ---: |",
            ]
            for line in self.values:
                cells = [line.what, f"{line.published:g}", _shown(line.ours), _shown(line.tuned)]
                lines.append(f"| {' | '.join(cells)} |")
        if self.rows or self.claims:
            lines += ["", "| row or claim | verdict |", "| --- | --- |"]
            lines += [f"| {row} | {verdict} |" for row, verdict in self.rows.items()]
            lines += [f"| {claim.what} | {claim.verdict} |" for claim in self.claims]
        extra = [
            key
            for key in self.measurements.paper
            if key in self.compared and not self._published(key)
        ]
        if extra:
            lines += ["", "| compared by claims | ours | tuned alike |", "| --- | ---: | ---: |"]
            for key in extra:
                tuned = self.measurements.tuned.get(key)
                lines.append(
                    f"| {key} | {_shown(self.measurements.paper[key])} | {_shown(tuned)} |"
                )
        lines += [""] + [f"- {note}" for note in (*self.notes, *self.measurements.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def _published(self, key: str) -> bool:
        return any(line.what == key for line in self.values)


def names() -> list[str]:
    """The reproductions there are."""
    found = recipes_folder().joinpath("papers").glob("*.published.toml")
    return sorted(path.name.removesuffix(".published.toml") for path in found)


def reproduce(
    name: str,
    size: Size = "quick",
    folder: str | os.PathLike[str] = "runs",
    *,
    workers: int | None = None,
    told: Told | None = None,
) -> Reproduction:
    """Makes a paper's table or figure and judges it.

    Args:
        name: One of ``names()``.
        size: "quick" or "paper".
        folder: Where runs are kept; what is finished is not repeated.
        workers: How many runs at a time.
        told: Is told now and then how far the runs are.
    """
    _check_known("reproduction", name, names())
    if size not in ("quick", "paper"):
        raise RecipeError(f"size is {size!r}; it must be 'quick' or 'paper'.")
    root = recipes_folder() / "papers"
    plan = _read(root / f"{name}.toml", ReproductionFile)
    published = _read(root / f"{name}.published.toml", PublishedFile)
    _check_known("study", plan.study, list(STUDIES))
    kept = Path(folder) / f"{name}-{size}"
    measured = STUDIES[plan.study](plan.at(size), kept, workers, told)
    values = tuple(
        Line(
            what=f"{row.row} / {metric}",
            published=value,
            ours=(ours := measured.paper.get(f"{row.row} / {metric}")),
            tuned=measured.tuned.get(f"{row.row} / {metric}"),
            verdict=_value_verdict(value, ours, published.tolerance[metric.split(" / ")[0]]),
        )
        for row in published.rows
        for metric, value in row.values.items()
    )
    found = Reproduction(
        name=name,
        title=plan.title,
        size=size,
        source=published.source,
        notes=published.notes,
        values=values,
        rows={row.row: _row_verdict(row, published, measured, values) for row in published.rows},
        claims=tuple(
            Line(what=claim.says, verdict=_claim_verdict(claim, measured))
            for claim in published.claims
        ),
        compared=frozenset(key for claim in published.claims for key in claim.keys),
        measurements=measured,
        folder=str(kept),
    )
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "reproduction.md").write_text(str(found), encoding="utf-8")
    return found


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with changes, tables within it changed the same way."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def _check_known(kind: str, name: str, there: Sequence[str]) -> None:
    try:
        known(kind, name, there)
    except ValueError as error:
        raise RecipeError(f"{error}") from None


def _value_verdict(published: float, ours: Measured | None, tolerance: float) -> Verdict:
    if ours is None or math.isnan(ours.mean):
        return Verdict.MISSING
    near = abs(ours.mean - published) <= tolerance + 1e-9
    return Verdict.REPRODUCED if near else Verdict.NOT


def _row_verdict(
    row: Published, published: PublishedFile, measured: Measurements, lines: tuple[Line, ...]
) -> Verdict:
    """All values near: reproduced. All on the published side of the reference row: direction."""
    own = [line for line in lines if line.what.startswith(f"{row.row} / ")]
    verdicts = {line.verdict for line in own}
    if verdicts == {Verdict.REPRODUCED}:
        return Verdict.REPRODUCED
    if Verdict.MISSING in verdicts:
        return Verdict.MISSING
    reference = next((one for one in published.rows if one.row == published.reference), None)
    if reference is None or reference.row == row.row:
        return Verdict.NOT
    for metric, value in row.values.items():
        tolerance = published.tolerance[metric.split(" / ")[0]]
        other = measured.paper.get(f"{reference.row} / {metric}")
        ours = measured.paper[f"{row.row} / {metric}"]
        if other is None or metric not in reference.values:
            return Verdict.NOT
        theirs, difference = value - reference.values[metric], ours.mean - other.mean
        if abs(theirs) > tolerance and theirs * difference <= 0:
            return Verdict.NOT
    return Verdict.DIRECTION


def _claim_verdict(claim: Claim, measured: Measurements) -> Verdict:
    """As far as it holds at the paper's settings, unless it does not where all are tuned alike."""
    for verdict, whole in ((Verdict.REPRODUCED, True), (Verdict.DIRECTION, False)):
        at_paper = _holds(claim, measured.paper, whole)
        if at_paper is None:
            return Verdict.MISSING
        if at_paper:
            return Verdict.TUNING if _holds(claim, measured.tuned, whole) is False else verdict
    return Verdict.NOT


def _holds(claim: Claim, values: Mapping[str, Measured], whole: bool) -> bool | None:
    """Whether every inequality holds, by as much as claimed or at all; None if a value is missing.

    What is claimed to be no more than so much below ("comparable") has no other direction.
    """
    if any(math.isnan(_mean(values, key)) for key in claim.keys):
        return None
    above = [(*_sides(one, values), one[2]) for one in claim.above]
    times = [(*_sides(one, values), one[2]) for one in claim.times]
    return all(
        [this - that >= by - 1e-9 if whole or by <= 0 else this > that for this, that, by in above]
        + [
            this >= factor * that if whole or factor <= 1 else this > that
            for this, that, factor in times
        ]
    )


def _sides(one: Inequality, values: Mapping[str, Measured]) -> tuple[float, float]:
    this, that = (_mean(values, key) if isinstance(key, str) else key for key in one[:2])
    return this, that


def _mean(values: Mapping[str, Measured], key: str) -> float:
    first, *rest = (values[one].mean if one in values else math.nan for one in key.split(_MINUS))
    return first - sum(rest)


def _shown(value: Measured | None) -> str:
    if value is None or math.isnan(value.mean):
        return ""
    error = "" if math.isnan(value.standard_error) else f" ± {value.standard_error:.2g}"
    return f"{value.mean:.4g}{error}"


def _read(path: Path, kind: Any) -> Any:
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
        return kind.model_validate(fields)
    except OSError as error:
        raise RecipeError(f"{path.name} cannot be read: {error.strerror}.") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path.name} is not valid TOML: {error}.") from error
    except ValidationError as error:
        raise RecipeError(wrong_fields(error, path.name)) from None
