"""``plumbline train``: one private run, on a person's own table or of a recipe."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from plumbline.cli.app import Json, WrongUse, app, examples, note, tiny
from plumbline.cli.budget import default_delta
from plumbline.cli.names import method_named, methods_starting, settings_of
from plumbline.cli.recipe_run import run_of_recipe
from plumbline.cli.run_summary import show_run

if TYPE_CHECKING:
    from plumbline.cli.own_table import OwnTable
    from plumbline.mechanism.calibration import Budget
    from plumbline.methods import Method

# On Adult at epsilon 1, DP-SGD is as accurate and far less well calibrated (loss 0.50, not 0.34).
METHOD = "global_adapt"
EPOCHS, EPSILON, MODEL, HIDDEN = 10.0, 3.0, "adult-mlp", 64
LEARNING_RATE = 0.002
_DATA, _PRIVACY, _TRAINING, _OUTPUT = "Data", "Privacy", "Training", "Output"


@app.command(
    epilog=examples(
        "plumbline train --data my.csv --target income --sensitive sex --epsilon 3",
        "plumbline train --data my.csv --target income --sensitive sex --sensitive race "
        "--epsilon 1 --method global-adapt --set clip=0.5 --epochs 20",
        "plumbline train demo-untuned --method DPSGD   (a run of that recipe)",
        "torchrun --nproc-per-node 2 -m plumbline train demo-untuned   (by two processes)",
    )
)
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe or its path, in place of --data.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A csv or parquet file with named columns.", rich_help_panel=_DATA),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column to predict: a class.", rich_help_panel=_DATA)
    ] = None,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(
            help="A column whose groups are reported; may be repeated.",
            metavar="COLUMN",
            rich_help_panel=_DATA,
        ),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of numbers that are categories. Columns of text are found.",
            metavar="COLUMN",
            rich_help_panel=_DATA,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="A column to leave out.", metavar="COLUMN", rich_help_panel=_DATA),
    ] = None,
    missing: Annotated[
        Literal["error", "drop"] | None,
        typer.Option(
            help="What to do with rows that lack a value.",
            show_default="error",
            rich_help_panel=_DATA,
        ),
    ] = None,
    missing_value: Annotated[
        list[str] | None,
        typer.Option(
            help="What a missing cell says, beside nothing at all.",
            metavar="TEXT",
            rich_help_panel=_DATA,
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="A second file to judge on; else a fifth is held out.", rich_help_panel=_DATA
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="The most that may be spent.",
            show_default=f"{EPSILON:g}",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="The delta of the guarantee.",
            show_default="1/(10 n), down to a power of ten",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    accountant: Annotated[
        Literal["pld", "rdp"] | None,
        typer.Option(help="Who computes epsilon.", show_default="pld", rich_help_panel=_PRIVACY),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="A ledger shared by all runs on this data; else one in the run's folder.",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Makes the run repeatable, and its noise known to who knows the seed. "
            "Without it the noise is secure.",
            show_default="none",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="As in `plumbline methods`.",
            show_default=METHOD,
            autocompletion=methods_starting,
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of the method, such as clip=0.5; may be repeated.",
            metavar="KEY=VALUE",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="How often a record is used, on average.",
            show_default=f"{EPOCHS:g}",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help="The expected batch size.",
            show_default="n/40, at least 256",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="The optimizer's.", show_default=f"{LEARNING_RATE:g}", rich_help_panel=_TRAINING
        ),
    ] = None,
    optimizer: Annotated[
        Literal["adam", "adamw", "nadam", "sgd"] | None,
        typer.Option(
            help="Uses the released gradient.", show_default="adam", rich_help_panel=_TRAINING
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A network that takes `features` and `classes`.",
            show_default=f"an MLP, {HIDDEN} wide",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run's folder. One that holds an unfinished run goes on with it.",
            show_default="runs/DATA-METHOD",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Log to TensorBoard, in the folder.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Trains one model privately, judges it by group, and states the guarantee in words.

    Ctrl-C stops after a step and saves; the same command goes on from there.
    """
    if (recipe is None) == (data is None):
        raise WrongUse(
            "Give a table with --data FILE --target COLUMN, or a recipe, as in "
            "'plumbline train demo'; one of the two."
        )
    if recipe is not None:
        own = {
            "--target": target, "--sensitive": sensitive, "--categorical": categorical,
            "--drop": drop, "--missing": missing, "--missing-value": missing_value,
            "--test": test, "--model": model, "--ledger": ledger, "--tensorboard": tensorboard,
        }  # fmt: skip
        given = [name for name, value in own.items() if value not in (None, [], False)]
        if given:
            raise WrongUse(
                f"{given[0]} is for a table of your own, with --data; a run of the recipe "
                f"'{recipe}' has its own. Leave {given[0]} out, or change a copy of the recipe."
            )
        run_of_recipe(
            recipe,
            method=method,
            settings=set_ or [],
            seed=seed,
            budget={
                "epsilon": epsilon,
                "delta": delta,
                "epochs": epochs,
                "expected_batch_size": batch,
                "accountant": accountant,
            },
            optimizer=optimizer,
            learning_rate=learning_rate,
            out=out or Path("runs"),
            json_=json_,
        )
        return
    assert data is not None
    if target is None:
        raise WrongUse("--target is missing: which column of the table is to be predicted?")

    from plumbline.cli.own_run import OwnRun
    from plumbline.cli.own_table import read_own_table
    from plumbline.cli.torchrun import refuse_several

    refuse_several("a run on the table")
    name = method_named(method or METHOD)
    values = settings_of(name, set_ or [])
    absent, lacking = ("", *(missing_value or [])), missing or "error"
    _check_budget(epsilon, delta)
    rows = read_own_table(
        data,
        target=target,
        sensitive=sensitive or (),
        categorical=categorical or (),
        drop=drop or (),
        missing=lacking,
        missing_values=absent,
        test=test,
    )
    records = len(rows.splits.train)
    built = _method(name, values, rows)
    epsilon = EPSILON if epsilon is None else epsilon
    epochs = EPOCHS if epochs is None else epochs
    accountant, optimizer = accountant or "pld", optimizer or "adam"
    rate = LEARNING_RATE if learning_rate is None else learning_rate
    if not 0 < rate < float("inf"):
        raise WrongUse(f"--learning-rate is {rate:g}; it must be positive and finite.")
    stated = default_delta(records) if delta is None else delta
    size = min(records, max(256, records // 40)) if batch is None else batch
    budget = _budget(built, records, epsilon, stated, epochs, size, accountant)
    network = _network(model, rows)
    folder = out or Path("runs") / f"{data.stem}-{name}"
    if rows.found:
        note(f"Categorical, since they hold text: {', '.join(rows.found)}.")
    if delta is None:
        note(
            f"Delta is {tiny(stated)}: a tenth of 1 in {records:,} records, down to a power of ten."
        )
    if built.unbounded_reason is not None:
        note(f"No guarantee: {built.unbounded_reason}.")
    run = OwnRun(
        table=rows,
        files={"--data": data, **({} if test is None else {"--test": test})},
        method=built,
        settings={
            "data": data.name,
            "records": records,
            "target": target,
            "sensitive": list(sensitive or []),
            # Names of columns, not of categories: those are of the rows, and this is published.
            "columns": list(rows.columns),
            "categorical": sorted(set(categorical or [])),
            "drop": sorted(set(drop or [])),
            "missing": lacking,
            "missing_values": sorted(set(absent)),
            "test": None if test is None else test.name,
            "method": name,
            "method_settings": values,
            "epsilon": epsilon,
            "delta": stated,
            "epochs": epochs,
            "expected_batch_size": size,
            "accountant": accountant,
            "model": network[0],
            "optimizer": optimizer,
            "learning_rate": rate,
            "seed": seed,
        },
        budget=budget,
        accountant=accountant,
        model=network,
        optimizer=optimizer,
        learning_rate=rate,
        seed=seed,
        folder=folder,
        ledger=ledger,
        tensorboard=tensorboard,
    )
    show_run(run.make(), json_)


def _check_budget(epsilon: float | None, delta: float | None) -> None:
    """Before a large table is read."""
    if epsilon is not None and not 0 < epsilon < float("inf"):
        raise WrongUse(f"--epsilon is {epsilon:g}; it must be positive and finite.")
    if delta is not None and not 0 < delta < 1:
        raise WrongUse(f"--delta is {delta:g}; it must lie strictly between 0 and 1.")


def _method(name: str, settings: dict[str, Any], rows: OwnTable) -> Method:
    from plumbline.methods import METHODS

    make = METHODS[name].make
    parameters = inspect.signature(make).parameters
    if "groups" in parameters and rows.sensitive:
        settings = {"groups": tuple(range(len(rows.group_names()))), **settings}
    needed = [
        one.name
        for one in parameters.values()
        if one.default is one.empty and one.name not in settings
    ]
    if needed:
        raise WrongUse(
            f"The method '{name}' needs {needed[0]}, which the command line cannot give; it is "
            f"there in Python, as plumbline.methods.{name}."
        )
    if "augment" in parameters:
        raise WrongUse(f"The method '{name}' makes views of images, and a table has none.")
    try:
        built = make(**settings)
    except TypeError as error:
        raise WrongUse(f"The method '{name}': {error}.") from error
    if built.needs_groups and not rows.sensitive:
        raise WrongUse(
            f"The method '{name}' treats groups differently; say which with --sensitive COLUMN."
        )
    return built


def _budget(
    method: Method,
    records: int,
    epsilon: float,
    delta: float,
    epochs: float,
    batch: int,
    accountant: Any,
) -> Budget:
    """The budget; a method without a guarantee gets the noise that DP-SGD would have."""
    from plumbline.mechanism.calibration import Budget

    stated: dict[str, Any] = {"delta": delta, "epochs": epochs, "expected_batch_size": batch}
    budget = Budget(epsilon=epsilon, **stated)
    if method.unbounded_reason is None:
        return budget
    plan = budget.resolve(records, accountant=accountant)
    return Budget(noise_multiplier=plan.noise_multiplier, **stated)


def _network(name: str | None, rows: OwnTable) -> tuple[str, dict[str, Any]]:
    from plumbline.experiments.recipe import known
    from plumbline.models import MODELS

    options: dict[str, Any] = {
        "features": len(rows.splits.features),
        "classes": len(rows.splits.classes),
    }
    if name is None:
        return MODEL, {**options, "hidden": HIDDEN}
    fitting = [
        one
        for one, make in MODELS.items()
        if set(options) <= set(inspect.signature(make).parameters)
    ]
    if name in MODELS and name not in fitting:
        raise WrongUse(f"The network '{name}' is not for tables; there are {', '.join(fitting)}.")
    return known("network", name, fitting), options
