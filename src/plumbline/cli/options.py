"""The options that describe a run, the same on ``train``, ``compare``, ``tune`` and ``diagnose``.

They are written once, in ``_SHARED``; ``described`` gives them to a command beside its own and
hands them over as a ``Description``.
"""

from __future__ import annotations

import csv
import functools
import inspect
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from plumbline.cli.app import WrongUse

Recipe = Annotated[str | None, typer.Argument(help="A recipe or its path, in place of --data.")]
Out = Annotated[
    Path, typer.Option(help="Runs are kept below this folder, in one of the experiment's name.")
]
Workers = Annotated[
    int | None, typer.Option(help="Runs at a time.", show_default="one for each core", min=1)
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Makes runs repeatable, and their noise known to whoever knows the seed. Without it "
        "the noise of runs on --data is secure.",
        show_default="none",
    ),
]
_TABLE = (
    "target", "sensitive", "categorical", "categories", "range_", "records", "schema", "from_data",
    "drop", "missing", "missing_value", "test",
)  # fmt: skip


def methods_starting(incomplete: str) -> list[str]:
    """For the shell's completion."""
    from plumbline.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete.replace("-", "_"))]


def _panel(panel: str) -> Callable[..., inspect.Parameter]:
    def option(
        name: str, kind: Any, text: str, default: str | bool = True, *declared: str, **more: Any
    ) -> inspect.Parameter:
        shown = {"help": text, "show_default": default, "rich_help_panel": panel, **more}
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(None, *declared, **shown),
            annotation=kind,
        )

    return option


_data, _privacy, _training = _panel("Data"), _panel("Privacy"), _panel("Training")
_column = functools.partial(_data, kind=list[str], metavar="COLUMN")
_SHARED = (
    _data("data", str, "A csv or parquet file, a data set, or package.module:attribute."),
    _data("target", str, "The column to predict: a class."),
    _column("sensitive", text="A column whose groups are reported; may be repeated."),
    _column("categorical", text="A column of numbers that are categories. Columns of text are."),
    _data(
        "categories",
        list[str],
        "The values of a column, of the target too; of columns that are not declared, they are "
        "found privately.",
        metavar="COLUMN=A,B",
    ),
    _data(
        "range_",
        list[str],
        "The lowest and highest value of a numeric column; else found privately.",
        True,
        "--range",
        metavar="COLUMN=LOW:HIGH",
    ),
    _data("records", int, "How many rows the table has, if that is public; else found privately."),
    _data("schema", Path, "A file that declares these; `plumbline data schema` writes one."),
    _data(
        "from_data",
        bool,
        "Take what is not declared from the rows as they are: epsilon does not cover it.",
        True,
        "--from-data",
    ),
    _column("drop", text="A column to leave out."),
    _data(
        "missing",
        Literal["error", "drop", "fill"],
        "What to do with rows that lack a value.",
        "error",
    ),
    _data("missing_value", list[str], "What a missing cell says, beside nothing.", metavar="TEXT"),
    _data("test", Path, "A second file to evaluate on; else a fifth is held out."),
    _privacy("epsilon", str, "The most that may be spent; `compare` takes several: 1,3,8.", "3"),
    _privacy(
        "delta",
        float,
        "Of the guarantee.",
        "1/(10 n), down to a power of ten; 1e-6 if n is private",
    ),
    _privacy("accountant", Literal["pld", "rdp"], "Who computes epsilon.", "pld"),
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
    _training("model", str, "A network, or package.module:attribute.", "an MLP, for tables"),
    _training("loss", str, "One loss for each record.", "cross_entropy"),
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
        said = _description({one.name: given.pop(one.name) for one in shared})
        if (given[own[0].name] is None) == ("data" not in said):
            raise WrongUse(
                "Give data with --data, such as a table with --data FILE --target COLUMN, or a "
                "recipe, as in 'plumbline train demo-untuned'; one of the two."
            )
        command(description=said, **given)

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
    found = {name: value for name, value in said.items() if value not in (None, [])}
    if "data" not in found:
        for name in _TABLE:
            if name in found:
                option = name.strip("_").replace("_", "-")
                raise WrongUse(
                    f"--{option} describes a table, which --data names; a recipe has its own."
                )
    elif Path(found["data"]).suffix.lower() in (".csv", ".parquet") and "target" not in found:
        raise WrongUse("--target is missing: which column of the table is to be predicted?")
    if "epsilon" in found:
        found["epsilon"] = _epsilons(found["epsilon"])
    if "categories" in found:
        found["categories"] = _each_once("--categories", map(_categories, found["categories"]))
    if "range_" in found:
        found["ranges"] = _each_once("--range", map(_range, found.pop("range_")))
    if "missing_value" in found:
        found["missing_values"] = ["", *found.pop("missing_value")]
    if "set_" in found:
        found["settings"] = settings_of(found.pop("set_"))
        if "method" not in found:
            raise WrongUse("--set changes a setting of a method: say which with --method.")
    return found


def _each_once(option: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise WrongUse(f"{option} is given twice for '{name}'; give each column once.")
        values[name] = value
    return values


def _categories(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise WrongUse(f"--categories {text}: give a column and its values, as in sex=F,M.")
    return name, [value.strip() for value in next(csv.reader([values], skipinitialspace=True))]


def _range(text: str) -> tuple[str, list[float]]:
    name, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        return name, [float(low), float(high)]
    except ValueError:
        raise WrongUse(
            f"--range {text}: give a column with its lowest and highest value, as in age=0:120."
        ) from None


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
