"""The options that describe a run, the same on ``train``, ``compare``, ``tune`` and ``diagnose``.

They are written once, as the parameters of ``_options``; ``described`` puts them in front of a
command's own and hands them over as a ``Description``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from plumbline.cli.app import WrongUse
from plumbline.cli.names import methods_starting, parsed

_DATA, _PRIVACY, _TRAINING = "Data", "Privacy", "Training"

Recipe = Annotated[str | None, typer.Argument(help="A recipe or its path, in place of --data.")]
Out = Annotated[
    Path, typer.Option(help="Runs are kept below this folder, in one of the experiment's name.")
]
Workers = Annotated[
    int | None, typer.Option(help="Runs at a time.", show_default="one for each core", min=1)
]


def _options(
    data: Annotated[
        str | None,
        typer.Option(
            help="A csv or parquet file, a data set, or package.module:attribute.",
            rich_help_panel=_DATA,
        ),
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
            help="A second file to evaluate on; else a fifth is held out.", rich_help_panel=_DATA
        ),
    ] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(
            help="The most that may be spent; `compare` takes several, as 1,3,8.",
            show_default="3",
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
    method: Annotated[
        str | None,
        typer.Option(
            help="As in `plumbline methods`, or package.module:attribute.",
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
    model: Annotated[
        str | None,
        typer.Option(
            help="A network, or package.module:attribute.",
            show_default="an MLP, 64 wide, for tables",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="One loss for each record.",
            show_default="cross_entropy",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="Uses the released gradient.", show_default="adam", rich_help_panel=_TRAINING
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="The optimizer's.", show_default="0.002", rich_help_panel=_TRAINING),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="How often a record is used, on average.",
            show_default="10",
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
) -> None:
    """Never called: its parameters are the options."""


def described(command: Callable[..., None], without: tuple[str, ...] = ()) -> Callable[..., None]:
    """A command that has the options beside its own, and receives them as ``description``.

    Args:
        command: Its parameter ``description`` is given what was said; others are its own.
        without: Options that it has not, or has in another form.
    """
    shared = {
        name: parameter
        for name, parameter in inspect.signature(_options).parameters.items()
        if name not in without
    }
    own = [
        one for one in inspect.signature(command).parameters.values() if one.name != "description"
    ]
    first = [one for one in own if one.default is one.empty or one.name in ("recipe", "what")]
    rest = [one for one in own if one not in first]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        said = {name: given.pop(name) for name in shared}
        command(description=_description(said), **given)

    hints = {**get_type_hints(_options, include_extras=True)}
    hints |= get_type_hints(command, include_extras=True)
    parameters = [
        one.replace(kind=one.KEYWORD_ONLY, annotation=hints[one.name])
        for one in (*first, *shared.values(), *rest)
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _description(said: dict[str, Any]) -> dict[str, Any]:
    """What was said, as ``Description`` has it; what was not said is not in it."""
    found = {name: value for name, value in said.items() if value not in (None, [])}
    if "epsilon" in found:
        found["epsilon"] = _epsilons(found["epsilon"])
    if "missing_value" in found:
        found["missing_values"] = ["", *found.pop("missing_value")]
    if "set_" in found:
        found["settings"] = _settings(found.pop("set_"))
        if "method" not in found:
            raise WrongUse("--set changes a setting of a method: say which with --method.")
    for name in ("target", "sensitive", "categorical", "drop", "missing", "missing_values", "test"):
        if name in found and "data" not in found:
            option = name.removesuffix("s").replace("_", "-")
            raise WrongUse(
                f"--{option} describes a table, which --data names; a recipe has its own."
            )
    if "data" in found and _is_table(found["data"]) and "target" not in found:
        raise WrongUse("--target is missing: which column of the table is to be predicted?")
    return found


def _is_table(data: str) -> bool:
    return Path(data).suffix.lower() in (".csv", ".parquet")


def _epsilons(text: str) -> float | list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise WrongUse(f"--epsilon is {text}; give a number, or several as in 1,3,8.") from None
    for value in values:
        if not 0 < value < float("inf"):
            raise WrongUse(f"--epsilon is {value:g}; it must be positive and finite.")
    if len(set(values)) < len(values):
        raise WrongUse(f"--epsilon is {text}; give each once.")
    return values[0] if len(values) == 1 else values


def _settings(given: list[str]) -> dict[str, Any]:
    """``key=value`` texts; values are TOML, and bare words text."""
    settings: dict[str, Any] = {}
    for one in given:
        key, equals, text = one.partition("=")
        if not equals:
            raise WrongUse(f"--set {one}: give a setting and its value, as in --set clip=0.5.")
        settings[key.strip().replace("-", "_")] = parsed(text)
    return settings
