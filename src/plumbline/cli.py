"""The command line: one command per job.

Exit codes: 0 for fine, 2 for wrong use, 1 for a failure. Errors are a paragraph in words; the
traceback is shown with ``--debug``.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    name="plumbline",
    help="Differentially private training that measures what clipping does to the gradient.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="The data sets: which there are, and how to get them.")
app.add_typer(data_app, name="data", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
console = Console()


def main() -> None:
    """Runs the command line; expected errors end it in words."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        code = app(args=arguments, standalone_mode=False)
    except typer.Abort:
        code = 130
    except KeyboardInterrupt:
        _say("Stopped. What was finished is kept; the same command goes on from there.")
        code = 130
    except Exception as error:
        if debug:
            raise
        usage = type(error).__module__.partition(".")[0] in ("click", "typer")
        _say(error.format_message() if hasattr(error, "format_message") else _words(error))
        code = 2 if usage or isinstance(error, ValueError | TypeError) else 1
    sys.exit(code if isinstance(code, int) else 0)


@app.command()
def methods(json_: Json = False) -> None:
    """Lists the methods: paper and equation, questions, passes, state, needs.

    Example: plumbline methods
    """
    from plumbline.methods import table

    rows = table()
    if json_:
        print(json.dumps([vars(row) for row in rows], indent=2))
        return
    shown = Table("method", "paper, equation", "asks", "passes", "keeps", "needs", "guarantee")
    shown.columns[0].no_wrap = True
    for row in rows:
        guarantee = "yes" if row.guarantee == "yes" else "none"
        shown.add_row(
            row.name, row.source, row.queries, str(row.passes), row.keeps, row.needs, guarantee
        )
    console.print(shown)


@app.command()
def budget(
    records: Annotated[int, typer.Option(help="How many records the training data has.")],
    batch: Annotated[int, typer.Option(help="The expected batch size.")],
    epochs: Annotated[float, typer.Option(help="How many times a record is expected to be used.")],
    epsilon: Annotated[float, typer.Option(help="The epsilon to be met.")],
    delta: Annotated[float, typer.Option(help="The delta at which it is met.")] = 1e-5,
    json_: Json = False,
) -> None:
    """Prints the noise multiplier of each method for a budget, by PLD and by RDP.

    Example: plumbline budget --records 50000 --batch 1024 --epochs 30 --epsilon 3 --delta 1e-5
    """
    found = _noise_of_methods(records, batch, epochs, epsilon, delta)
    if json_:
        print(json.dumps(found, indent=2))
        return
    shown = Table("questions of a step", "methods", "noise (PLD)", "noise (RDP)")
    for asked, row in found.items():
        shown.add_row(asked, ", ".join(row["methods"]), f"{row['pld']:.4g}", f"{row['rdp']:.4g}")
    console.print(
        f"epsilon {epsilon:g} at delta {delta:g}: batches of {batch:,} expected of {records:,} "
        f"records, {epochs:g} epochs"
    )
    console.print(shown)


@app.command()
def compare(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/adult.toml.")],
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    workers: Annotated[int | None, typer.Option(help="Runs at a time; one a core unless told.")] = (
        None
    ),
) -> None:
    """Runs a recipe's methods and seeds, and prints the table. Starting again repeats nothing.

    Example: plumbline compare recipes/adult.toml
    """
    from plumbline.experiments import Recipe
    from plumbline.experiments import compare as run_all

    read = Recipe.read(recipe)
    with console.status("starting") as status:
        table = run_all(
            read,
            out / read.name,
            workers=workers,
            told=lambda done, of: status.update(f"{done} of {of} runs are done"),
        )
    console.print(str(table), highlight=False, soft_wrap=True)
    if table.tests is not None:
        console.print(table.tests.note, highlight=False)
    console.print(f"runs: {out / read.name}", highlight=False)


@app.command()
def ledger(path: Annotated[Path, typer.Argument(help="A ledger.")], delta: float = 1e-5) -> None:
    """Says what a ledger's runs have spent.

    Example: plumbline ledger runs/adult/DPSGD-seed0-.../ledger --delta 1e-6
    """
    from plumbline.mechanism.ledger import Ledger

    read = Ledger.read(path)
    shown = Table("run", "steps charged")
    for run in sorted(read.runs()):
        shown.add_row(run, f"{read.charged(run):,}")
    console.print(shown)
    spent = read.epsilon(delta)
    said = "infinite: a run has no guarantee" if math.isinf(spent) else f"{spent:.4g}"
    console.print(f"epsilon of all of it at delta {delta:g}: {said}")


@data_app.command("list")
def data_list(json_: Json = False) -> None:
    """Lists the data sets, and which files of each are there.

    Example: plumbline data list
    """
    from plumbline.data import data_folder
    from plumbline.data.base import FILES

    root = data_folder()
    rows = {
        name: {"files": len(files), "there": sum((root / f.path).is_file() for f in files)}
        for name, files in sorted(FILES.items())
    }
    if json_:
        print(json.dumps({"folder": str(root), "data": rows}, indent=2))
        return
    shown = Table("data set", "files there")
    for name, row in rows.items():
        own = "your own" if name == "image-folder" else "bundled"
        shown.add_row(name, f"{row['there']} of {row['files']}" if row["files"] else own)
    console.print(shown)
    console.print(f"data folder: {root} (set PLUMBLINE_DATA for another)")


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="Its name, as in `data list`.")]) -> None:
    """Downloads what is missing of a data set, with its published checksums.

    Example: plumbline data get mnist
    """
    from plumbline.data import get
    from plumbline.data.base import FILES
    from plumbline.experiments.recipe import known

    paths = get(known("data set", name, list(FILES)))
    if not paths:
        console.print(f"'{name}' comes with the package; there is nothing to download.")
    for path in paths:
        console.print(str(path), highlight=False, soft_wrap=True)


def _noise_of_methods(
    records: int, batch: int, epochs: float, epsilon: float, delta: float
) -> dict[str, Any]:
    """The noise multipliers, methods that ask the same together."""
    from plumbline.mechanism.calibration import Budget
    from plumbline.mechanism.release import Sampling, StepRelease
    from plumbline.methods import REGISTRY

    spec = Budget(epsilon=epsilon, delta=delta, epochs=epochs, expected_batch_size=batch)
    found: dict[str, Any] = {}
    for entry in REGISTRY.values():
        method = entry.make(**entry.example())
        if method.unbounded_reason is not None:
            continue
        questions = [f"{q.name} ({q.noise_multiplier:g})" for q in method.queries(1.0)]
        asked = (
            ", ".join(questions).replace("(1)", "(sigma)").replace("gradient (sigma)", "gradient")
        )
        if asked in found:
            found[asked]["methods"].append(entry.name)
            continue

        def release(sigma: float, sampling: Sampling, own: Any = method) -> StepRelease:
            return StepRelease(sampling=sampling, queries=own.queries(sigma))

        found[asked] = {"methods": [entry.name]}
        for accountant in ("pld", "rdp"):
            plan = spec.resolve(records, release_at=release, accountant=accountant)
            found[asked][accountant] = plan.noise_multiplier
    return found


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _say(text: str) -> None:
    Console(stderr=True).print(f"plumbline: {text}", highlight=False, soft_wrap=True, markup=False)
