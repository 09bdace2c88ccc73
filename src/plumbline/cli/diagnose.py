"""``plumbline diagnose``: what clipping did to a run's gradients, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from plumbline.cli.app import Json, app, console, examples, note, show, show_json, table
from plumbline.cli.chart import columns
from plumbline.cli.interrupts import stopping_after_the_step
from plumbline.cli.options import Ledger, Out, Seed, described
from plumbline.cli.progress import watching_one
from plumbline.formats import angle, degrees, finite, number, percent, short

_LINES = 6  # readings that are shown along the run


@app.command(
    epilog=examples(
        "plumbline diagnose --data my.csv --target income --sensitive sex --method dpsgd",
        "plumbline diagnose demo-untuned --method DPSGD",
        "plumbline diagnose demo-untuned --method global-adapt --steps 300",
        "plumbline diagnose runs/demo/DPSGD--paper--seed0-0123456789",
    )
)
@described
def diagnose(
    description: dict[str, Any],
    what: Annotated[
        str | None,
        typer.Argument(help="A recipe, or the folder of a run or a comparison; or use --data."),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            help="A diagnostic, or package.module:attribute; may be repeated.",
            show_default="bias, errors, norms, symmetry",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Train only so many steps.", show_default="the recipe's", min=1),
    ] = None,
    probed: Annotated[
        int, typer.Option(help="How many training records are measured on.", min=2)
    ] = 256,
    ledger: Ledger = None,
    seed: Seed = None,
    out: Out = Path("runs"),
    json_: Json = False,
) -> None:
    """Says what clipping and noise do to the gradient, who bears it, and what to try.

    A recipe's method, or one on --data, is run once with measurements along the way. The folder of
    a run is read; if nothing was measured along it, its trained model is measured. The run's page
    then says what clipping did.
    """
    from plumbline import instruments, report
    from plumbline.diagnostics import NOT_COVERED, to_json

    if measure:
        description["measure"] = measure
    with stopping_after_the_step(out), watching_one("diagnosed run") as on_progress:
        found = instruments.diagnose(
            what,
            steps=steps,
            probed=probed,
            seed=seed,
            folder=out,
            ledger=ledger,
            on_progress=on_progress,
            **description,
        )
    if json_:
        facts = {"method": found.title, "folder": str(found.folder)}
        readings = {"readings": list(found.readings), "verdict": to_json(found.verdict)}
        show_json({"label": NOT_COVERED, **facts, **readings})
        return
    many = "1 reading" if len(found.readings) == 1 else f"{len(found.readings)} readings"
    last = found.readings[-1]
    show(f"{found.title}: {many} of {last.get('records', '?')} training records, in {found.folder}")
    show(f"({NOT_COVERED})")
    console.print()
    show_readings(found.readings)
    console.print()
    if len(found.readings) == 1:
        show(
            "One reading, after the last step, where the true gradient is shortest and noise looks "
            "largest beside it. A recipe, or --data, measures along a whole run."
        )
    show(str(found.verdict))
    with suppress(OSError):  # a folder that may only be read
        note(f"The page says this too: {report.write(found.folder)}")


def show_readings(readings: Sequence[dict[str, Any]]) -> None:
    """What was measured along a run, and the last reading more closely."""
    _along(readings)
    _by_group(readings[-1])
    _norms(readings[-1])
    _symmetry(readings[-1])


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
        console.print(f"  {line}", highlight=False)
    ends = f"{edges[0]:.2g}".ljust(len(counts) - 6) + f"{edges[-1]:.2g}"
    if isinstance(clip, float):
        place = min(len(counts), sum(edge <= clip for edge in edges[:-1]))
        mark = ("▲" if blocks else "^") + f" clip {short(clip)}"
        before = place - 1 if place else 0
        console.print(f"  {' ' * before}{mark}", highlight=False)
    console.print(f"  {ends} (logarithmic)", highlight=False)


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
