"""The files that a run leaves behind: its result, its weights, and what it was made with."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import io
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from plumbline.data import DataError, Splits, TableEncoding, read_encoding
from plumbline.experiments.files import (
    CHECKPOINT,
    ENCODING,
    MODEL,
    RESULT,
    STATEMENT,
    FileError,
    json_text,
    read_json,
    write_bytes,
    write_text,
)
from plumbline.experiments.manifest import write_manifest
from plumbline.experiments.objects import present
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.settling import SchemaSource, schema_source
from plumbline.fairness import Bin, GroupReport, Undefined, to_json
from plumbline.mechanism.ledger import Position
from plumbline.models import MODELS
from plumbline.training.keeping import forget


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        method: The method's title.
        seed: The seed.
        epsilon: Spent; infinite for a method without a guarantee.
        delta: At which.
        noise_multiplier: Of the gradient.
        steps: How many steps were made.
        seconds: How long they took, all sessions together.
        report: Metrics of the test part by group.
        statement: The guarantee in words.
        folder: The name of the run's folder.
        model: The network's name, and the options it was built with.
        settings: The method's settings, with what followed from the data.
        schema: Where ranges, categories and classes come from, if the data are a table.
        rows: Of a table, how many test rows there are ("test_rows") and how many of them are left
            out of the report ("left_out"), for want of a value or a known class. Rows of the
            training part are left out alike; how many, the result does not tell.
        classes: The classes' names, by number; none where the target is a number.
        threshold: The probability from which on the second of two classes is predicted, if that is
            not the more probable one.
        budget: Of a run on a table, what all runs on it had cost together when it ended: the
            released models, and everything. ``together.Totals`` as plain values.
    """

    method: str
    seed: int
    epsilon: float
    delta: float
    noise_multiplier: float
    steps: int
    seconds: float
    report: GroupReport
    statement: str
    folder: str
    model: dict[str, Any]
    settings: dict[str, Any]
    schema: SchemaSource | None = None
    rows: dict[str, int] | None = None
    classes: tuple[str, ...] = ()
    threshold: float | None = None
    budget: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return {**to_json(vars(self)), "report": self.report.to_json()}


def result_facts(spec: RunSpec, splits: Splits) -> dict[str, Any]:
    """The fields of a result that follow from what is run, and on which data."""
    return {
        "method": spec.method.title,
        "seed": spec.seed,
        "folder": spec.folder,
        "model": {"name": spec.model.name, "options": spec.model_options(splits)},
        "settings": spec.method_settings(len(splits.groups)),
        "schema": schema_source(spec.data, splits),
        "rows": None if splits.use is None else splits.use.to_json(),
        "classes": splits.classes,
    }


def read_result(folder: Path) -> RunResult | None:
    """The result of a finished run, or None.

    Raises:
        FileError: If it is damaged.
    """
    path = folder / RESULT
    if not path.is_file():
        return None
    stored = read_json(path)
    try:
        report = read_report(stored.pop("report"))
        stored["epsilon"] = float(stored["epsilon"])
        stored["classes"] = tuple(stored.get("classes", ()))
        return RunResult(report=report, **stored)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} is damaged: it has not the fields of a result ({error}). Restore it from a "
            "copy, or delete the folder and make the run again."
        ) from error


def finish(
    folder: Path, model: nn.Module, *, run: str, ledger: Position, statement: str, result: Any
) -> None:
    """Writes what a run leaves behind; the result comes last, and then the checkpoint goes.

    Args:
        folder: The run's folder, with what was written along the way.
        model: The model.
        run: The run's id.
        ledger: The ledger's position after its last line.
        statement: The guarantee in words.
        result: The result, as plain values.
    """
    write_text(folder / STATEMENT, statement)
    write_model(model, folder / MODEL)
    text = json_text(result)
    write_manifest(folder, run=run, ledger=ledger, result=text)
    write_text(folder / RESULT, text)
    forget(folder / CHECKPOINT)


@functools.cache
def commit() -> str | None:
    """The commit of Plumbline's checkout when it was first asked for, or None outside of one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "--short=10", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """What a run is made with."""
    made_with = commit()
    return {
        "plumbline": importlib.metadata.version("plumbline"),
        **({} if made_with is None else {"commit": made_with}),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def same_bits() -> dict[str, str]:
    """What must be alike for two processes to make the same bits of a run.

    Not the commit: it changes with a page of the docs, and does not with an edit that is not
    committed yet.
    """
    return {name: one for name, one in versions().items() if name != "commit"} | {
        "source": source()
    }


@functools.cache
def source() -> str:
    """A digest of Plumbline's own Python files when it was first asked for."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"<{path.relative_to(package).as_posix()}>".encode() + path.read_bytes())
    return digest.hexdigest()[:10]


def write_model(model: nn.Module, path: Path) -> None:
    """Writes the weights; read them with ``torch.load(path, weights_only=True)``."""
    # In memory first: torch does not say what a full disk has refused.
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    write_bytes(path, buffer.getvalue())


def read_model(folder: Path, spec: RunSpec, result: Mapping[str, Any]) -> nn.Module:
    """The trained model of a finished run.

    Raises:
        UnknownPart: If its network was a Python object that is not given here.
        FileError: If its weights are not those of the network.
    """
    made = present(MODELS, spec.model.name)
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = (
            copy.deepcopy(made)
            if isinstance(made, nn.Module)
            else made(**result["model"]["options"])
        )
    try:
        model.load_state_dict(torch.load(folder / MODEL, weights_only=True))
    except FileNotFoundError:
        raise FileError(f"{folder} has no {MODEL}: the run is not whole.") from None
    except Exception as error:  # damage can look like anything
        raise FileError(
            f"{folder / MODEL} does not load into the network that {RESULT} names "
            f"({type(error).__name__}). `plumbline verify` says which file was changed."
        ) from error
    return model.eval()


def read_table_encoding(folder: Path) -> TableEncoding | None:
    """How the rows of a table become what the model sees; None if the run was not made on one.

    Raises:
        FileError: If the file is damaged.
    """
    if not (folder / ENCODING).is_file():
        return None
    try:
        return read_encoding(folder / ENCODING)
    except DataError as error:
        raise FileError(str(error)) from error


def read_report(stored: dict[str, Any]) -> GroupReport:
    """Metrics by group, as a result has them."""

    def number(value: Any) -> Any:
        return Undefined(value.removeprefix("undefined: ")) if isinstance(value, str) else value

    def bins(values: list[dict[str, Any]]) -> tuple[Bin, ...]:
        names = ("predicted", "observed", "records")
        return tuple(Bin(*(one[name] for name in names)) for one in values)

    return GroupReport(
        overall={name: number(value) for name, value in stored["overall"].items()},
        by_group={
            group: {name: number(value) for name, value in values.items()}
            for group, values in stored["by_group"].items()
        },
        sizes=stored["sizes"],
        minimum_size=stored["minimum_size"],
        reliability=bins(stored.get("reliability", [])),
        reliability_by_group={
            group: bins(own) for group, own in stored.get("reliability_by_group", {}).items()
        },
    )
