"""``diagnose``: what clipping and noise do to the gradient of a run, who bears it, what to try."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from plumbline.diagnostics import Probe, Verdict
from plumbline.experiments.compatibility import check_fits
from plumbline.experiments.files import FileError
from plumbline.experiments.loading import load_data
from plumbline.experiments.probing import keep_reading
from plumbline.experiments.recipe import ProbePart, Recipe, RecipeError
from plumbline.experiments.run_spec import RunSpec, only_study
from plumbline.experiments.running import run, started
from plumbline.experiments.settling import settled
from plumbline.instruments.describing import Description, recipe_of
from plumbline.instruments.loading import Trained, load_run
from plumbline.instruments.rows import METHOD, row_named
from plumbline.instruments.training import spec_of
from plumbline.report.choosing import diagnosis
from plumbline.report.reading import Study, read
from plumbline.training.fitting import StepInfo

MEASURE = ("bias", "errors", "norms", "symmetry")
_READINGS = 20  # along a run that is made here


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was measured of a run.

    Attributes:
        title: The method.
        folder: Where the run is.
        readings: What was measured along the run, or at its end, as plain values by name.
        verdict: What costs utility, and what to try. None of it is covered by epsilon.
    """

    title: str
    folder: Path
    readings: tuple[dict[str, Any], ...]
    verdict: Verdict

    def __str__(self) -> str:
        return str(self.verdict)


def diagnose(
    what: Recipe | str | os.PathLike[str] | None = None,
    *,
    steps: int | None = None,
    probed: int = 256,
    seed: int | None = None,
    folder: str | os.PathLike[str] = "runs",
    ledger: str | os.PathLike[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    **description: Unpack[Description],
) -> Diagnosis:
    """Says what clipping and noise do to the gradient.

    Args:
        what: The folder of a run or of a comparison, which is read; if nothing was measured along a
            run, its trained model is, and the reading is kept in its folder. Or a recipe, of which
            one run is made with measurements along the way; or leave it out and describe the run.
        steps: Train only so many steps.
        probed: How many training records are measured on.
        seed: Makes the run repeatable.
        folder: Where a run that is made is kept.
        ledger: Where it is charged, as of ``train``.
        on_progress: Called with (done, total) after each step.
        description: The parts of the run; beside a recipe or a folder, ``method`` says which of its
            methods, by default the first private one.
    """
    method = description.get("method")
    if isinstance(what, str | os.PathLike) and Path(what).is_dir():
        return _of_folder(Path(what), method, probed, description.get("measure", MEASURE))
    if what is None:
        description.setdefault("method", METHOD)
        description.setdefault("seeds", [0])
        made = recipe_of(None, **description)
    else:
        made = recipe_of(what, **description)
        row = made.methods[0] if method is not None else row_named(made, None)
        made = made.model_copy(update={"methods": (row,), "baseline": None})
    root = Path(folder) / made.name
    made = settled(made, root, seed=seed, ledger=ledger).recipe
    spec = spec_of(_probed(made, steps, probed, description.get("measure")), seed)
    check_fits(spec)
    run(spec, root, on_progress, ledger=ledger, part="diagnosis")
    return _of_folder(root / spec.folder, None)


def _of_folder(
    folder: Path, method: Any, records: int = 256, measure: Sequence[str] = MEASURE
) -> Diagnosis:
    folder = only_study(folder)
    study = read(folder)
    title = _title(study, method)
    where = folder if study.single else folder / study.runs[title][0].result.folder
    readings = study.runs[title][0].readings
    if not readings:
        readings = (_reading(load_run(where), records, measure),)
        study = study.with_readings(title, readings)
        with suppress(FileError):  # in a folder that may only be read
            keep_reading(where, readings[0])
    found = diagnosis(study, title)
    if found is None:
        raise RecipeError(f"{folder} has no measurements of clipping by {title}.")
    return Diagnosis(title, where, tuple(readings), found)


def _reading(trained: Trained, records: int, measure: Sequence[str]) -> dict[str, Any]:
    """What is measured of a trained model, for a run along which nothing was."""
    splits, result = load_data(trained.spec), trained.result
    private = started(trained.spec, splits)
    private.model.load_state_dict(trained.model.state_dict())
    probe = Probe(
        every=1,
        records=records,
        measure=measure,
        group_names=dict(enumerate(splits.groups)),
        seed=trained.spec.seed,
    )
    info = StepInfo(result.steps, result.steps, lambda: result.epsilon, result.delta)
    probe.after_step(private, info)
    private.close()
    return {name: value for one in probe.readings for name, value in one.to_json().items()}


def _title(study: Study, method: Any) -> str:
    if method is not None:
        return row_named(study.recipe, method).title
    with_readings = study.measured("bias")
    private = [title for title in with_readings or study.titles if title in study.private]
    return (private or with_readings or study.titles)[0]


def _probed(recipe: Recipe, steps: int | None, records: int, measure: Any) -> Recipe:
    budget = recipe.budget
    if steps is not None:
        budget = budget.model_copy(update={"steps": steps, "epochs": None})
    if recipe.probe is not None and steps is None and measure is None:
        return recipe
    length = budget.steps
    if length is None:
        train = load_data(RunSpec(recipe, recipe.methods[0], recipe.seeds[0])).train
        length = round((budget.epochs or 1) / budget.rate(train.known_records))
    probe = ProbePart(
        every=max(1, length // _READINGS), records=records, measure=tuple(measure or MEASURE)
    )
    return recipe.model_copy(update={"budget": budget, "probe": probe})
