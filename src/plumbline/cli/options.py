"""The options that describe a run, the same on ``train``, ``compare``, ``tune`` and ``diagnose``.

They are written once, in ``_SHARED``; ``described`` gives them to a command beside its own and
hands them over as a ``Description``.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from plumbline.cli.app import WrongUse
from plumbline.cli.table_options import TABLE, described_table, each, names_in, option_in

Recipe = Annotated[
    str | None, typer.Argument(help="A recipe, its path, or a run's folder, in place of --data.")
]
Out = Annotated[
    Path, typer.Option(help="Runs are kept below this folder, in one of the experiment's name.")
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="What tuning aims at, such as auc, balanced-accuracy, average-precision, macro-f1, "
        "rmse, or worst-group-auc.",
        show_default="the loss, which unbalanced classes do not mislead",
        rich_help_panel="Training",
    ),
]
Ledger = Annotated[
    Path | None,
    typer.Option(
        help="Where runs are charged.",
        show_default="on a table, the table's ledger in your state folder, and one in the folder "
        "of each run",
        rich_help_panel="Privacy",
    ),
]
Limit = Annotated[
    float | None,
    typer.Option(
        help="The epsilon that all released models may cost together; kept in the ledger.",
        metavar="EPSILON",
        rich_help_panel="Privacy",
    ),
]
Workers = Annotated[
    int | None, typer.Option(help="Runs at a time.", show_default="one for each core", min=1)
]
Shard = Annotated[
    str | None,
    typer.Option(
        help="Make one part of the runs, for a job array: 3/16 is the third of sixteen. Without it "
        "the same command puts the parts together.",
        metavar="K/N",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Make the runs on a Ray cluster whose machines share the folder: HOST:PORT, auto for "
        "the one this machine is in, or local.",
        metavar="ADDRESS",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Makes runs repeatable, and their noise known to whoever knows the seed. Without it "
        "the noise of runs on --data is secure.",
        show_default="none",
    ),
]


def methods_starting(incomplete: str) -> list[str]:
    """For the shell's completion."""
    from plumbline.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete.replace("-", "_"))]


_privacy, _training = option_in("Privacy"), option_in("Training")
_SHARED = (
    *TABLE,
    _privacy("epsilon", str, "The most that may be spent; `compare` takes several: 1,3,8.", "3"),
    _privacy(
        "delta",
        float,
        "Of the guarantee.",
        "1/(10 n), down to a power of ten; 1e-6 if n is private",
    ),
    _privacy("accountant", Literal["pld", "rdp"], "Who computes epsilon.", "pld"),
    _privacy(
        "bands",
        int,
        "Over how many steps noise is correlated: `plumbline budget` compares them.",
        "1, independent noise",
    ),
    _training(
        "method",
        str,
        "As in `plumbline methods`, or package.module:attribute.",
        autocompletion=methods_starting,
    ),
    _training(
        "set_",
        list[str],
        "A setting of the method, such as clip=0.5; may be repeated.",
        True,
        "--set",
        metavar="KEY=VALUE",
    ),
    _training(
        "model",
        str,
        "linear; mlp, or mlp=64,32 for its hidden layers; another network, or "
        "package.module:attribute.",
        "mlp=64,64, for tables",
    ),
    _training("loss", str, "One loss for each record.", "cross_entropy; mse for a number"),
    _training(
        "threshold",
        str,
        "The probability from which on the second of two classes is predicted; `auto` chooses it "
        "on rows that are not trained on, which epsilon does not cover.",
        "the more probable class",
        metavar="NUMBER|auto",
    ),
    _training(
        "class_weights",
        str,
        "By how much records of a class count, once clipped; the largest becomes 1.",
        "1 for all",
        metavar="CLASS=1,CLASS=0.2",
    ),
    _training("optimizer", str, "Uses the released gradient.", "adam"),
    _training("learning_rate", float, "The optimizer's.", "0.002"),
    _training("epochs", float, "How often a record is used, on average.", "10"),
    _training(
        "batch",
        int,
        "The expected batch size, if n is public.",
        "n/40, at least 256; 0.04 n if n is private",
    ),
)


def described(command: Callable[..., None], without: tuple[str, ...] = ()) -> Callable[..., None]:
    """A command that has the options beside its own, and receives them as ``description``.

    Args:
        command: Its first parameter is what it is about, a recipe say, in place of which data may
            be given; its parameter ``description`` is given what was said of the run.
        without: Options that it has not, or has in another form.
    """
    hints = get_type_hints(command, include_extras=True)
    own = [
        one.replace(kind=one.KEYWORD_ONLY, annotation=hints[one.name])
        for one in inspect.signature(command).parameters.values()
        if one.name != "description"
    ]
    shared = [one for one in _SHARED if one.name not in without]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        options = {one.name: given.pop(one.name) for one in shared}
        place, data = given[own[0].name], options["data"]
        if place is not None and data is not None:
            raise WrongUse(
                f"'{place}' has its own data and target: leave out --data, or leave out '{place}' "
                "and describe the table whole, with --data FILE --target COLUMN."
            )
        if place is None and data is None:
            raise WrongUse(
                "Give data with --data, such as a table with --data FILE --target COLUMN, or a "
                "recipe or a run's folder, as in 'plumbline train demo-untuned'."
            )
        command(description=_description(options), **given)

    parameters = [own[0], *shared, *own[1:]]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def settings_of(given: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as a method's settings; values are TOML, and bare words text."""
    settings: dict[str, Any] = {}
    for one in given:
        key, equals, text = one.partition("=")
        if not equals:
            raise WrongUse(f"--set {one}: give a setting and its value, as in --set clip=0.5.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        settings[key.strip().replace("-", "_")] = value
    return settings


def _description(said: dict[str, Any]) -> dict[str, Any]:
    """What was said, as ``Description`` has it; what was not said is not in it."""
    found = described_table(
        {name: value for name, value in said.items() if value not in (None, [])}
    )
    if "epsilon" in found:
        found["epsilon"] = _epsilons(found["epsilon"])
    if "threshold" in found:
        found["threshold"] = _threshold(found["threshold"])
    if "class_weights" in found:
        found["class_weights"] = each("--class-weights", _class_weight)(
            names_in([found["class_weights"]])
        )
    if "set_" in found:
        found["settings"] = settings_of(found.pop("set_"))
        if "method" not in found:
            raise WrongUse("--set changes a setting of a method: say which with --method.")
    return found


def _class_weight(text: str) -> tuple[str, float]:
    name, _, weight = text.rpartition("=")
    try:
        value = float(weight)
    except ValueError:
        value = 0.0
    if not (name and 0 < value < float("inf")):
        raise WrongUse(
            f"--class-weights {text}: give classes with positive weights, as in yes=1,no=0.2."
        )
    return name, value


def _threshold(text: str) -> float | str:
    try:
        value = text if text == "auto" else float(text)
    except ValueError:
        value = 0.0
    if isinstance(value, float) and not 0 < value < 1:
        raise WrongUse(f"--threshold is {text}; give a number between 0 and 1, or auto.")
    return value


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
