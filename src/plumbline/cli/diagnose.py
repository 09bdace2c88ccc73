"""``plumbline diagnose``: what clipping did to a run's gradients, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table
from plumbline.cli.chart import columns
from plumbline.cli.compare import Out
from plumbline.cli.names import method_of, recipe_at
from plumbline.cli.recipe_run import make
from plumbline.formats import angle, degrees, finite, number, percent, short

if TYPE_CHECKING:
    from plumbline.diagnostics import Verdict
    from plumbline.experiments import Recipe
    from plumbline.report.reading import Run, Study

_LINES = 6  # readings that are shown along the run
_READINGS = 20  # readings of a run that is made here


@app.command(
    epilog=examples(
        "plumbline diagnose demo-untuned --method DPSGD",
        "plumbline diagnose demo-untuned --method global-adapt --steps 300",
        "plumbline diagnose runs/demo/DPSGD--paper--seed0-0123456789",
    )
)
def diagnose(
    what: Annotated[
        str, typer.Argument(help="A recipe, or the folder of a run or of a comparison.")
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="Which method of the recipe or comparison.", show_default="the first private one"
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Train only so many steps.", show_default="the recipe's", min=1),
    ] = None,
    records: Annotated[
        int, typer.Option(help="How many training records are measured on.", min=2)
    ] = 256,
    out: Out = Path("runs"),
    json_: Json = False,
) -> None:
    """Says what clipping and noise do to the gradient, who bears it, and what to try.

    A recipe's method is run once, with measurements along the way; a folder is read.
    """
    from plumbline.diagnostics import NOT_COVERED, to_json
    from plumbline.report.choosing import diagnosis
    from plumbline.report.reading import read

    folder = Path(what)
    if not folder.is_dir():
        recipe = _probed(recipe_at(what), steps, records)
        folder = _made(recipe, method, out / recipe.name)
        method = None
    study = read(folder)
    title = _title(study, method)
    run = study.runs[title][0]
    found = diagnosis(study, title)
    if not run.readings or found is None:
        raise WrongUse(
            f"{folder} has no measurements of clipping by {title}: its recipe has no part 'probe'. "
            "`plumbline diagnose RECIPE --method NAME` makes a run with them."
        )
    if json_:
        facts = {"method": title, "folder": str(folder), "readings": list(run.readings)}
        show_json({"label": NOT_COVERED, **facts, "verdict": to_json(found)})
        return
    show_readings(run, found)


def _probed(recipe: Recipe, steps: int | None, records: int) -> Recipe:
    from plumbline.experiments import Recipe

    fields = recipe.model_dump(mode="json")
    if steps is not None:
        fields["budget"] |= {"steps": steps, "epochs": None}
    made = Recipe.of(fields)
    if recipe.probe is not None and steps is None:
        return made
    length = made.budget.steps or _steps_of(made)
    fields["probe"] = {"every": max(1, length // _READINGS), "records": records}
    return Recipe.of(fields)


def _steps_of(recipe: Recipe) -> int:
    """The number of steps of a recipe that says epochs."""
    from plumbline.experiments.loading import load_data
    from plumbline.experiments.run_spec import RunSpec

    spec = RunSpec(recipe, recipe.methods[0], recipe.seeds[0])
    budget = recipe.budget
    return round((budget.epochs or 1) * len(load_data(spec).train) / budget.expected_batch_size)


def _made(recipe: Recipe, method: str | None, root: Path) -> Path:
    from plumbline.experiments.run_spec import RunSpec

    part = method_of(recipe, method)
    spec = RunSpec(recipe, part, recipe.seeds[0])
    make(spec, root)
    return root / spec.folder


def _title(study: Study, method: str | None) -> str:
    if method is not None:
        return method_of(study.recipe, method).title
    with_readings = study.measured("bias")
    private = [title for title in with_readings if title in study.private]
    return (private or with_readings or study.titles)[0]


def show_readings(run: Run, found: Verdict) -> None:
    """What was measured along a run, and the verdict on it."""
    from plumbline.diagnostics import NOT_COVERED

    records = run.readings[-1].get("records", "?")
    show(
        f"{run.result.method}, seed {run.result.seed}: {len(run.readings)} readings of {records} "
        "training records"
    )
    show(f"({NOT_COVERED})")
    console.print()
    _along(run.readings)
    _by_group(run.readings[-1])
    _norms(run.readings[-1])
    _symmetry(run.readings[-1])
    console.print()
    show(str(found))


def _along(readings: Sequence[dict[str, Any]]) -> None:
    """The clipped gradient beside the true one, along the run."""
    shown = table("step", "bias", "relative", "turned", "kept", "noise", "clipped", "norm", "clip")
    shown.columns[0].justify = "right"
    for row in _some(readings):
        bias, norms, errors = (row.get(name) or {} for name in ("bias", "norms", "errors"))
        noise, size = finite(errors.get("noise")), finite(bias.get("gradient_norm"))
        shown.add_row(
            f"{row['step']:,}",
            short(bias.get("norm")),
            number(bias.get("relative"), digits=2),
            degrees(angle(bias.get("cosine"))),
            percent(bias.get("magnitude"), digits=0),
            short(noise**0.5 / size if noise is not None and size else None, 2),
            percent(norms.get("clipped"), digits=0),
            short((norms.get("quantiles") or {}).get("0.5")),
            short(norms.get("clip")),
        )
    console.print(shown)
    show(
        "bias: the norm of the clipped mean gradient, before the noise, minus the true (plain) "
        "one; relative: the same in lengths of the true gradient. turned: the angle between the "
        "two. kept: how much of the true gradient's length is left in its own direction. noise: of "
        "one step, in lengths of the true gradient. clipped: the share of records that are scaled "
        "down further than short ones. norm: the median of what is clipped."
    )


def _by_group(row: dict[str, Any]) -> None:
    bias = (row.get("bias") or {}).get("by_group") or {}
    if len(bias) < 2:
        return
    norms = row.get("norms") or {}
    shown = table("group", "bias", "relative", "turned", "kept", "clipped", "norm")
    for group, found in bias.items():
        shown.add_row(
            group,
            short(found.get("norm")),
            number(found.get("relative"), digits=2),
            degrees(angle(found.get("cosine"))),
            percent(found.get("magnitude"), digits=0),
            percent((norms.get("clipped_by_group") or {}).get(group), digits=0),
            short((norms.get("by_group") or {}).get(group)),
        )
    console.print()
    console.print(shown)


def _norms(row: dict[str, Any]) -> None:
    """The last histogram of norms, with the clip bound below it."""
    norms = row.get("norms") or {}
    histogram = norms.get("histogram") or {}
    counts = (histogram.get("counts") or {}).get("all")
    if not counts:
        return
    edges, clip = histogram["edges"], norms.get("clip")
    blocks = console.encoding.lower().startswith("utf")
    console.print(f"\ngradient norms after step {row['step']:,}", highlight=False)
    for line in columns(counts, 4, blocks=blocks):
        console.print(f"  {line}", highlight=False, markup=False)
    ends = f"{edges[0]:.2g}".ljust(len(counts) - 6) + f"{edges[-1]:.2g}"
    if isinstance(clip, float):
        place = min(len(counts), sum(edge <= clip for edge in edges[:-1]))
        mark = ("▲" if blocks else "^") + f" clip {short(clip)}"
        before = place - 1 if place else 0
        console.print(f"  {' ' * before}{mark}", highlight=False, markup=False)
    console.print(f"  {ends} (logarithmic)", highlight=False, markup=False)


def _symmetry(row: dict[str, Any]) -> None:
    found = row.get("symmetry") or {}
    along, fair = found.get("alignment"), found.get("symmetric_alignment")
    if not isinstance(along, float) or not isinstance(fair, float):
        return
    text = (
        f"Symmetry: a clipped step goes {short(along)} along the gradient; were the records "
        f"spread evenly about their mean, {short(fair)}."
    )
    if isinstance(p := found.get("cosine_p_value"), float):
        even = "spread evenly" if p > 0.05 else "not spread evenly"
        text += f" The records' directions are {even} (p = {p:.2g})."
    console.print()
    show(text)


def _some(readings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few readings, evenly along the run; the first and the last among them."""
    last = len(readings) - 1
    places = {round(last * k / (_LINES - 1)) for k in range(_LINES)}
    return [readings[place] for place in sorted(places)]
