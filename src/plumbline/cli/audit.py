"""``plumbline audit``: what a step or a run leaks at least, beside the epsilon that is claimed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline.cli.app import Json, app, console, examples, note, show, show_json, table
from plumbline.cli.options import methods_starting, settings_of
from plumbline.cli.progress import watching_one
from plumbline.formats import tiny

if TYPE_CHECKING:
    from plumbline.auditing import Membership, StepAudit

audit = typer.Typer(
    no_args_is_help=True,
    help="Measures what a step or a run leaks at least; exit code 1 if a claim is refuted.",
)
app.add_typer(audit, name="audit")

REFUTED = 1
Confidence = Annotated[
    float, typer.Option(help="How sure a bound must be.", min=0.5, max=1 - 1e-12)
]
Noise = Annotated[float, typer.Option("--noise-multiplier", help="Of the gradient.")]
Delta = Annotated[float, typer.Option(help="The delta at which epsilon is bounded.")]
Repetitions = Annotated[int, typer.Option(help="With the canary, and as many without it.", min=100)]
Seed = Annotated[
    int | None, typer.Option(help="Makes the audit repeatable.", show_default="secure noise")
]
Row = Annotated[
    str | None,
    typer.Option(
        "--method", help="Which method of the recipe.", show_default="the first private one"
    ),
]


@audit.command(
    epilog=examples(
        "plumbline audit step dpsgd --repetitions 20000",
        "plumbline audit step global-adapt --noise-multiplier 0.5 --sampling-rate 0.01",
        "plumbline audit step dpsgd --repetitions 3000000 --confidence 0.95 --json",
    )
)
def step(
    method: Annotated[
        str,
        typer.Argument(help="A method; see plumbline methods.", autocompletion=methods_starting),
    ],
    noise_multiplier: Noise = 1.0,
    sampling_rate: Annotated[
        float, typer.Option(help="The probability with which a record takes part.")
    ] = 1.0,
    delta: Delta = 1e-5,
    repetitions: Repetitions = 100_000,
    confidence: Confidence = 1 - 1e-6,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, as clip=0.5.")
    ] = None,
    seed: Seed = None,
    json_: Json = False,
) -> None:
    """Audits one real step of a method, with a planted canary."""
    from plumbline.auditing import audit_step, audited
    from plumbline.methods import find

    name = find(method).name if ":" not in method else method
    found = audit_step(
        audited(name, **settings_of(set_ or [])),
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        delta=delta,
        repetitions=repetitions,
        confidence=confidence,
        seed=seed,
    )
    if json_:
        show_json({**dataclasses.asdict(found), "refuted": found.refuted})
    else:
        _show_step(found)
    _end(found.refuted)


@audit.command(
    epilog=examples(
        "plumbline audit bands 4",
        "plumbline audit bands 16 --rate 0.5 --repetitions 100000",
    )
)
def bands(
    count: Annotated[
        int, typer.Argument(help="Over how many steps noise is correlated.", min=2, metavar="BANDS")
    ],
    noise_multiplier: Noise = 2.0,
    rate: Annotated[
        float, typer.Option(help="The probability with which a record is drawn in its turn.")
    ] = 1.0,
    cycles: Annotated[int, typer.Option(help="How many turns a record has.", min=1)] = 3,
    delta: Delta = 1e-5,
    repetitions: Repetitions = 20_000,
    confidence: Confidence = 1 - 1e-6,
    seed: Seed = None,
    json_: Json = False,
) -> None:
    """Audits noise correlated between steps, with a canary that takes part several times."""
    from plumbline.auditing import audit_bands
    from plumbline.noise import banded

    found = audit_bands(
        banded(count),
        cycles=cycles,
        noise_multiplier=noise_multiplier,
        rate=rate,
        delta=delta,
        repetitions=repetitions,
        confidence=confidence,
        seed=seed,
    )
    if json_:
        show_json({**dataclasses.asdict(found), "refuted": found.refuted})
    else:
        show(
            f"{count} bands: {found.steps} steps, noise multiplier {noise_multiplier:g}, rate "
            f"{found.rate:g} within a part, delta {tiny(delta)}, confidence 1 - "
            f"{tiny(1 - confidence)}"
        )
        show(found.verdict())
    _end(found.refuted)


@audit.command(
    epilog=examples(
        "plumbline audit run demo-untuned --method DPSGD --canaries 1000",
        "plumbline audit run my.toml --canaries 5000 --guesses 500 --json",
    )
)
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe: its file, or its name.")],
    method: Row = None,
    canaries: Annotated[int, typer.Option(help="How many records are planted.", min=1)] = 1000,
    guesses: Annotated[
        int | None,
        typer.Option(help="How many are guessed about.", show_default="a fifth", min=1),
    ] = None,
    confidence: Confidence = 0.95,
    seed: Annotated[
        int | None, typer.Option(help="Of the run.", show_default="the recipe's first")
    ] = None,
    json_: Json = False,
) -> None:
    """Trains once with mislabelled canaries, and guesses which of them were trained on."""
    from plumbline.experiments.attacking import LABEL, audit_recipe
    from plumbline.experiments.run_spec import RunSpec
    from plumbline.fairness import to_json
    from plumbline.instruments.describing import recipe_of
    from plumbline.instruments.rows import row_named

    made = recipe_of(recipe)
    part = row_named(made, method)
    spec = RunSpec(made, part, made.seeds[0] if seed is None else seed)
    with watching_one(spec.name) as on_progress:
        found = audit_recipe(
            spec, canaries, guesses=guesses, confidence=confidence, on_progress=on_progress
        )
    refuted = found.found.refuted(found.claimed)
    if json_:
        show_json({"label": LABEL, **to_json(found), "refuted": refuted})
    else:
        bound = found.found.bound
        show(
            f"{found.method}, seed {spec.seed}: {canaries:,} canaries, delta {tiny(bound.delta)}, "
            f"confidence {bound.confidence:g}"
        )
        show(f"({LABEL})")
        show(found.found.verdict(found.claimed))
        _show_membership({found.method: (found.claimed, [found.membership])})
    _end(refuted)


@audit.command(
    epilog=examples(
        "plumbline audit neighbours my.toml",
        "plumbline audit neighbours runs/demo --method DPSGD --records 256 --json",
    )
)
def neighbours(
    what: Annotated[str, typer.Argument(help="A run's folder, or a recipe: its file or name.")],
    method: Row = None,
    steps: Annotated[int, typer.Option(help="How many steps are tried.", min=1)] = 3,
    records: Annotated[int, typer.Option(help="How many records a batch has.", min=2)] = 64,
    seed: Annotated[int, typer.Option(help="Which records are tried.")] = 0,
    json_: Json = False,
) -> None:
    """Moves single records of the run's own data, and measures what the step's answers do."""
    from plumbline.experiments.attacking import LABEL, neighbours_of
    from plumbline.experiments.run_spec import RunSpec
    from plumbline.instruments.describing import recipe_of
    from plumbline.instruments.rows import row_named
    from plumbline.report.reading import read

    folder: Path | None = None
    if Path(what).is_dir():
        study = read(Path(what))
        part = row_named(study.recipe, method) if method or not study.single else None
        title = study.titles[0] if part is None else part.title
        result = study.runs[title][0].result
        spec = RunSpec(study.recipe, study.part(title), result.seed)
        folder = study.folder if study.single else Path(what) / result.folder
    else:
        made = recipe_of(what)
        spec = RunSpec(made, row_named(made, method), made.seeds[0])
    found = neighbours_of(spec, folder, steps=steps, records=records, seed=seed)
    if json_:
        show_json({"label": LABEL, **dataclasses.asdict(found), "refuted": not found.holds})
    else:
        show(f"{spec.method.title}, seed {spec.seed} ({LABEL})")
        show(str(found))
    _end(not found.holds)


@audit.command(
    epilog=examples(
        "plumbline audit membership runs/demo",
        "plumbline audit membership runs/demo/DPSGD--paper--seed0-0123456789 --json",
    )
)
def membership(
    runs: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")],
    replicates: Annotated[int, typer.Option(help="Resamples behind an interval.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
    json_: Json = False,
) -> None:
    """Attacks finished runs by their losses: who was trained on, by group."""
    import numpy as np

    from plumbline.experiments.attacking import LABEL, membership_of
    from plumbline.experiments.run_spec import RunSpec
    from plumbline.fairness import to_json
    from plumbline.report.reading import read

    study = read(runs)
    found: dict[str, list[Membership]] = {}
    for title in study.titles:
        for run_ in study.runs[title]:
            spec = RunSpec(study.recipe, study.part(title), run_.result.seed)
            folder = study.folder if study.single else runs / run_.result.folder
            if not json_:
                note(f"attacking {title}, seed {run_.result.seed}")
            one = membership_of(
                spec, folder, generator=np.random.default_rng(seed), replicates=replicates
            )
            found.setdefault(title, []).append(one)
    if json_:
        rows = {
            title: [
                {"seed": run_.result.seed, "epsilon": run_.result.epsilon, **to_json(one)}
                for run_, one in zip(study.runs[title], own, strict=True)
            ]
            for title, own in found.items()
        }
        show_json({"label": LABEL, "runs": rows})
        return
    show(f"({LABEL})")
    _show_membership({title: (study.row(title).epsilon, own) for title, own in found.items()})


def _end(refuted: bool) -> None:
    if refuted:
        raise typer.Exit(REFUTED)


def _show_step(found: StepAudit) -> None:
    from plumbline.mechanism.rounding import rounded_down, rounded_up

    show(
        f"{found.method}: one step, noise multiplier {found.noise_multiplier:g}, sampling rate "
        f"{found.sampling_rate:g}, delta {tiny(found.delta)}, confidence 1 - "
        f"{tiny(1 - found.confidence)}"
    )
    if found.findings:
        shown = table("what was looked at", "bound by", "repetitions", "epsilon >=", "claimed <=")
        shown.columns[1].justify = "left"
        for one in found.findings:
            shown.add_row(
                one.statistic,
                one.bound.how,
                f"{one.bound.trials:,}",
                rounded_down(one.bound.epsilon, 4),
                rounded_up(one.claimed, 4),
            )
        console.print(shown)
    show(found.verdict())


def _show_membership(found: dict[str, tuple[float, list[Membership]]]) -> None:
    """A line for each method and group."""
    from plumbline.experiments.attacking import averaged
    from plumbline.mechanism.rounding import rounded_up

    rates = ("TPR .1%", "1%", "10%")
    shown = table("method", "eps", "group", "AUC", "±", "acc.", *rates)
    shown.columns[2].justify = "left"
    for title, (epsilon, own) in found.items():
        for place, line in enumerate(averaged(own)):
            first = (title, rounded_up(epsilon)) if place == 0 else ("", "")
            shown.add_row(*first, *line)
    console.print(shown)
    show(
        "AUC: how likely a training record's loss is below that of another, 0.5 for a blind guess; "
        "± is half of its 95% interval in the first run. acc.: of calling the half with the "
        "smaller losses members. TPR: the share of training records that are found where .1%, 1% "
        "or 10% of the others are taken for such. Means over seeds; in brackets, groups that are "
        "too small to judge."
    )
