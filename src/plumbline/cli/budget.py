"""``plumbline budget``: what noise each method needs for a budget, and how epsilon grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline.cli.app import Json, WrongUse, app, console, examples, show, show_json, table
from plumbline.cli.chart import chart
from plumbline.formats import tiny

if TYPE_CHECKING:
    from plumbline.mechanism.accountant import Accountant
    from plumbline.mechanism.calibration import Budget, Plan
    from plumbline.methods import Method
    from plumbline.noise import Choice

_ACCOUNTANTS: tuple[Accountant, ...] = ("pld", "rdp")
_POINTS = 48  # columns of the chart
BASELINE = "dpsgd"


@app.command(
    epilog=examples(
        "plumbline budget --records 50000 --batch 1024 --epochs 30 --epsilon 3 --delta 1e-5",
        "plumbline budget --records 50000 --batch 1024 --epochs 30 --epsilon 3 --json",
    )
)
def budget(
    records: Annotated[int, typer.Option(help="How many records the training data has.")],
    epsilon: Annotated[float, typer.Option(help="The epsilon to be met.")],
    batch: Annotated[
        int | None,
        typer.Option(help="The expected batch size.", show_default="256, or all records"),
    ] = None,
    epochs: Annotated[float, typer.Option(help="How often a record is used, on average.")] = 10.0,
    delta: Annotated[
        float | None,
        typer.Option(help="The delta at which it is met.", show_default="1/(10 records)"),
    ] = None,
    columns: Annotated[
        int, typer.Option(help="How many columns a table would have, to look ahead.", min=1)
    ] = 10,
    momentum: Annotated[
        float, typer.Option(help="The optimizer's, for bands of noise.", min=0.0, max=0.999)
    ] = 0.9,
    json_: Json = False,
) -> None:
    """Prints the noise that each method needs for a budget, and what a table can hope for.

    What a method asks beside the gradient, such as counts, is paid for from the same budget.
    """
    from plumbline.experiments.outlook import outlook
    from plumbline.instruments.describing import default_delta
    from plumbline.mechanism.calibration import Budget
    from plumbline.mechanism.statement import how_often_right
    from plumbline.noise import best, compare

    if records < 1:
        raise WrongUse(f"--records is {records}; it must be at least 1.")
    stated = default_delta(records) if delta is None else delta
    batch = min(256, records) if batch is None else batch
    spec = Budget(epsilon=epsilon, delta=stated, epochs=epochs, expected_batch_size=batch)
    found, plan = _noise_of_methods(spec, records)
    ahead = outlook(plan, records, columns)
    bands = compare(spec, records, momentum=momentum)
    curve = _curve(plan, epochs)
    if json_:
        facts = {"records": records, "batch": batch, "epochs": epochs}
        facts |= {"epsilon": epsilon, "delta": stated, "steps": plan.steps}
        points = [{"epoch": epoch, "epsilon": spent} for epoch, spent in curve]
        more = {"meaning": how_often_right(epsilon, stated), "outlook": vars(ahead)}
        more["bands"] = {"compared": [vars(one) for one in bands], "suggested": best(bands).bands}
        show_json({"budget": facts, "methods": found, "curve": points, **more})
        return
    show(
        f"epsilon {epsilon:g} at delta {tiny(stated)}: {plan.steps:,} steps, batches of {batch:,} "
        f"expected of {records:,} records, {epochs:g} epochs"
    )
    show(
        "Whoever sees the model is right about whether one record is in the data "
        f"{how_often_right(epsilon, stated)}, where half is guessing."
    )
    show(f"\nWhat a table of {records:,} records and {columns} columns can hope for:")
    for sentence in ahead.words():
        show(sentence)
    show("This is a rule of thumb; `plumbline compare --epsilon 1,3,8` measures it on your table.")
    console.print()
    shown = table("asks in each step", "PLD", "RDP", "x dpsgd", "methods")
    shown.columns[-1].justify = "left"
    baseline = next(row["pld"] for row in found if row["method"] == BASELINE)
    for (asks, pld, rdp), names in _alike(found).items():
        noise = [f"{pld:.4f}", f"{rdp:.4f}", f"{pld / baseline:.3f}"]
        shown.add_row(asks, *noise, ", ".join(names))
    console.print(shown)
    show(
        "PLD, RDP: the noise multiplier by either accountant, which is the standard deviation of "
        "the noise on the gradient's sum, over its bound. (10) after a question is its own. RDP "
        "bounds epsilon less tightly, so it asks for more."
    )
    _show_bands(bands, momentum)
    console.print(f"\nepsilon over epochs ({BASELINE}, PLD)", highlight=False)
    blocks = console.encoding.lower().startswith("utf")
    spent = [value for _, value in curve]
    for line in chart(spent, last=epochs, unit="epochs", blocks=blocks):
        console.print(line, highlight=False)


def _show_bands(choices: list[Choice], momentum: float) -> None:
    """What correlating the noise of steps would give."""
    from plumbline.noise import best

    console.print()
    shown = table("bands", "noise (PLD)", "error of the weights")
    for one in choices:
        shown.add_row(str(one.bands), f"{one.noise_multiplier:.4f}", f"{one.error:.3f}")
    console.print(shown)
    found = best(choices)
    show(
        f"bands: over how many steps noise is correlated ({BASELINE}, momentum {momentum:g}, a "
        "constant learning rate); those that do not fit are left out. The error is that of the "
        "weights' noise, relative to independent noise. "
        + (
            f"Suggested: --bands {found.bands}."
            if found.bands > 1
            else "Independent noise (one band) is best here."
        )
    )


def _alike(rows: list[dict[str, Any]]) -> dict[tuple[str, float, float], list[str]]:
    """The methods by what they ask and need."""
    found: dict[tuple[str, float, float], list[str]] = {}
    for row in rows:
        found.setdefault((row["asks"], row["pld"], row["rdp"]), []).append(row["method"])
    return found


def _noise_of_methods(spec: Budget, records: int) -> tuple[list[dict[str, Any]], Plan]:
    """A line for each method that has a guarantee, and the plan of DP-SGD.

    What is asked alike needs the same noise and is computed once.
    """
    from plumbline.methods import METHODS

    rows: list[dict[str, Any]] = []
    plans: dict[tuple[object, ...], dict[str, Plan]] = {}
    baseline = None
    for entry in METHODS.values():
        method = entry.make(**entry.example())
        if not method.private:
            continue
        key = (*method.queries(1.0), *method.queries(2.0), method.composition)
        if key not in plans:
            plans[key] = {
                accountant: spec.resolve(records, release_at=method.release, accountant=accountant)
                for accountant in _ACCOUNTANTS
            }
        if entry.name == BASELINE:
            baseline = plans[key]["pld"]
        noise = {name: plan.noise_multiplier for name, plan in plans[key].items()}
        rows.append({"method": entry.name, "asks": _asked(method), **noise})
    assert baseline is not None
    return rows, baseline


def _asked(method: Method) -> str:
    """A step's questions, with the noise of those whose noise is their own."""
    parts = []
    for one, other in zip(method.queries(1.0), method.queries(2.0), strict=True):
        own = one.noise_multiplier == other.noise_multiplier
        times = "" if one.noise_multiplier == 1 else f" ({one.noise_multiplier:g} x)"
        parts.append(one.name + (f" ({one.noise_multiplier:g})" if own else times))
    return ", ".join(parts)


def _curve(plan: Plan, epochs: float) -> list[tuple[float, float]]:
    """(epoch, epsilon) along the run, at most one for each column of the chart."""
    from plumbline.mechanism.accountant import epsilon

    count = min(_POINTS, plan.steps)
    steps = [max(1, round(plan.steps * (place + 1) / count)) for place in range(count)]
    return [
        (
            epochs * step / plan.steps,
            epsilon(plan.releases(step), delta=plan.delta, accountant=plan.accountant),
        )
        for step in steps
    ]
