"""The two files of a reproduction, below ``recipes/papers``.

NAME.toml says how the numbers are made: a study, and the recipe or settings that it works on. There
are up to three sizes: "quick" shows that it runs, "answer" is the smallest that can judge the
claims, "paper" is the paper's own. NAME.published.toml has what the paper printed: values, and
claims as inequalities between values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from plumbline.experiments.recipe import SettingsPart
from plumbline.experiments.recipes import folder as recipes_folder
from plumbline.experiments.settings import read_toml, require_known

Size = Literal["quick", "answer", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
Inequality = tuple[str | float, str | float, float]
MINUS = " minus "


class Published(SettingsPart):
    """One row of published values: all of them within the tolerance, or not.

    Attributes:
        row: The row.
        values: Metric to value, such as "accuracy / male" to 80.5.
    """

    row: str
    values: dict[str, float]


class PaperClaim(SettingsPart):
    """A claim of the paper: some values lie above others.

    Attributes:
        says: In words.
        above: (this, that, by at least this much): keys "row / metric", or numbers, or the
            difference of two keys, "this minus that". Where the paper has numbers, the third is
            half of the published difference.
        times: (this, that, at least so many times that), the same way.
    """

    says: str
    above: tuple[Inequality, ...] = ()
    times: tuple[Inequality, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> PaperClaim:
        if not self.above + self.times:
            raise ValueError(f"the claim {self.says!r} has neither 'above' nor 'times'")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The values that it is about."""
        sides = [side for this, that, _ in self.above + self.times for side in (this, that)]
        given = [side.split(MINUS) for side in sides if isinstance(side, str)]
        return tuple(key for keys in given for key in keys)


class PublishedFile(SettingsPart):
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
    claims: tuple[PaperClaim, ...] = ()

    @model_validator(mode="after")
    def _has_tolerances(self) -> PublishedFile:
        metrics = {metric.split(" / ")[0] for row in self.rows for metric in row.values}
        if missing := sorted(metrics - set(self.tolerance)):
            raise ValueError(f"there is no tolerance for {', '.join(missing)}")
        return self

    def tolerance_of(self, metric: str) -> float:
        """How far our mean of a metric, such as "loss / male", may lie from the published value."""
        return self.tolerance[metric.split(" / ")[0]]


class ReproductionFile(SettingsPart):
    """NAME.toml.

    Attributes:
        title: What is reproduced.
        study: Name of one of ``STUDIES``.
        settings: For the study; a recipe, mostly.
        quick: What differs at the quick size, table within table.
        answer: What differs at the answer's size.
        minutes: About how long each size takes on two cores; these are the sizes there are.
        answers: Why a size that is not the paper's can judge the claims. Without a reason they
            are not judged at that size, and values never are.
        priority: ``reproduce --all`` makes lower ones first.
        about: The method that all of its claims are about, where no row of a recipe names it.
        same_runs: The reproduction whose runs these numbers are of; its file then has everything
            but the title and the priority.
    """

    title: str
    study: str
    settings: dict[str, Any]
    quick: dict[str, Any] = Field(default_factory=dict)
    answer: dict[str, Any] = Field(default_factory=dict)
    minutes: dict[Size, float]
    answers: dict[Size, str] = Field(default_factory=dict)
    priority: int = 5
    about: str | None = None
    same_runs: str | None = None

    @model_validator(mode="after")
    def _answers(self) -> ReproductionFile:
        if "answer" in self.minutes and "answer" not in self.answers:
            raise ValueError("the size 'answer' needs its reason in [answers]")
        return self

    def at(self, size: Size, seeds: Sequence[int] | None = None) -> dict[str, Any]:
        """The settings at a size; with these seeds in place of its own, where it has any."""
        changes = {"quick": self.quick, "answer": self.answer, "paper": {}}[size]
        settings = merged(self.settings, changes)
        if seeds is not None and self.seeds(size):
            own = {"seeds": list(seeds)}
            settings = merged(settings, own if "seeds" in settings else {"recipe": own})
        return settings

    def seeds(self, size: Size) -> list[int]:
        """The seeds of a size; empty where the study has none."""
        settings = self.at(size)
        given: list[int] = settings.get("seeds", settings.get("recipe", {}).get("seeds", []))
        return given

    def network(self, size: Size) -> str:
        """The network at a size, and what it is trained on; "-" where there is none."""
        settings = self.at(size)
        recipe = settings.get("recipe", settings)
        if "model" not in recipe:
            return "-"
        return f"{recipe['model']['name']} on {recipe['data']['name']}"


def names() -> list[str]:
    """The reproductions there are."""
    found = recipes_folder().joinpath("papers").glob("*.published.toml")
    return sorted(path.name.removesuffix(".published.toml") for path in found)


def read(name: str) -> tuple[ReproductionFile, PublishedFile]:
    """The files of a reproduction.

    Raises:
        RecipeError: With the nearest name, or with the file, the field and what is wrong with it.
    """
    require_known("reproduction", name, names())
    root = recipes_folder() / "papers"
    plan, published = (root / f"{name}{kind}.toml" for kind in ("", ".published"))
    fields = read_toml(plan)
    if (other := fields.get("same_runs")) is not None:
        require_known("reproduction", other, names())
        fields = {**read_toml(root / f"{other}.toml"), **fields}
    return (
        ReproductionFile.of(fields, plan.name),
        PublishedFile.of(read_toml(published), published.name),
    )


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with changes, tables within it changed the same way.

    Options are those of what has the name: another name has none of them.
    """
    renamed = base.get("name") != changes.get("name", base.get("name"))
    result = {key: value for key, value in base.items() if not (renamed and key == "options")}
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result
