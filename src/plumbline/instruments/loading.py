"""``load``: a trained model, ready to predict, from the folder of a run or of an export."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.data import TableEncoding
from plumbline.data.encoding import from_unit_range
from plumbline.data.table_files import is_frame
from plumbline.experiments.exporting.contents import FORMAT, KIND
from plumbline.experiments.exporting.predict import MANIFEST, SETTINGS, WEIGHTS, build
from plumbline.experiments.files import ENCODING, RESULT, STATEMENT, FileError, read_json
from plumbline.experiments.manifest import changed_files
from plumbline.experiments.named_code import require_declared
from plumbline.experiments.run_result import (
    RunResult,
    read_model,
    read_result,
    read_table_encoding,
)
from plumbline.experiments.run_spec import RunSpec, read_spec, runs_in
from plumbline.fairness.outcomes import predicted as predicted_class
from plumbline.without_trace import evaluating


@dataclass(frozen=True, eq=False)
class Loaded(ABC):
    """A trained model, ready to predict.

    Attributes:
        folder: Where it is.
        model: The trained model, in evaluation mode.
        encoding: How rows of a table become what the model sees; None for other data.
    """

    folder: Path
    model: nn.Module
    encoding: TableEncoding | None

    @property
    @abstractmethod
    def epsilon(self) -> float:
        """What its training has spent; infinite without a guarantee."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """The classes' names, by number; none where a number is predicted."""

    @property
    @abstractmethod
    def threshold(self) -> float | None:
        """The probability from which on the second of two classes is predicted, if there is one."""

    @abstractmethod
    def statement(self) -> str:
        """The guarantee in words, with its assumptions."""

    def predict(self, rows: Any) -> Tensor:
        """The probability of each class, ``[n, classes]``; of a number, that itself, ``[n]``.

        Args:
            rows: What the model takes; or, of a model of a table, a pandas DataFrame, or a csv or
                parquet file, with the columns that it learned from. There is a prediction for
                every row: missing cells are filled as in training.
        """
        if isinstance(rows, str | os.PathLike) or is_frame(rows):
            if self.encoding is None:
                raise ValueError(
                    f"{self.folder} has no {ENCODING}: the model was not trained on a table, so "
                    "that rows of one cannot be read. Give what the model takes."
                )
            rows = self.encoding.read(rows)
        with evaluating(self.model), torch.no_grad():
            outputs: Tensor = self.model(rows).double()
        if self.encoding is not None and self.encoding.target_range is not None:
            return from_unit_range(outputs.flatten(), self.encoding.target_range)
        return outputs.softmax(1)

    def decide(self, predicted: Tensor) -> list[str]:
        """What ``predict`` gave as words: classes, by the threshold if there is one; numbers.

        Args:
            predicted: What ``predict`` gave, of a model of a table.
        """
        if not self.classes:
            return [f"{value:.6g}" for value in predicted.tolist()]
        places = predicted_class(predicted, self.threshold)
        return [self.classes[place] for place in places.tolist()]


@dataclass(frozen=True, eq=False)
class Trained(Loaded):
    """A finished run, with its model ready to predict.

    Attributes:
        spec: What was run.
        result: What came of it: metrics by group, epsilon, the statement.
    """

    spec: RunSpec
    result: RunResult

    @property
    def epsilon(self) -> float:
        return self.result.epsilon

    @property
    def classes(self) -> tuple[str, ...]:
        return self.result.classes

    @property
    def threshold(self) -> float | None:
        return self.result.threshold

    def statement(self) -> str:
        return self.result.statement


@dataclass(frozen=True, eq=False)
class Exported(Loaded):
    """A model that was exported, ready to predict: without the run that it comes from.

    Attributes:
        settings: What its ``model.json`` says.
    """

    settings: dict[str, Any]

    @property
    def epsilon(self) -> float:
        """Rounded up."""
        return float(self.settings["epsilon"])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.settings["classes"])

    @property
    def threshold(self) -> float | None:
        threshold: float | None = self.settings["threshold"]
        return threshold

    def statement(self) -> str:
        return (self.folder / STATEMENT).read_text(encoding="utf-8")


def load(folder: str | os.PathLike[str]) -> Loaded:
    """A trained model, with what it needs to predict.

    Args:
        folder: The folder of a finished run, which is returned as ``Trained``; of an experiment
            that has a single run; or of an export, which is returned as ``Exported``.

    Raises:
        FileError: If it is no such folder, the run is not finished, or a file is damaged.
        UnknownPart: If its network was a Python object that was not given in this process, or is
            of a package that is not there.
        UnsafeCode: If it names code to run that was not declared to be a part of its kind.
    """
    found = Path(folder)
    return load_export(found) if (found / SETTINGS).is_file() else load_run(found)


def load_run(folder: Path) -> Trained:
    """The trained model of a finished run, as ``load``."""
    found = only_run(folder)
    result = read_result(found)
    if result is None:
        raise FileError(
            f"The run in {found} is not finished: it has no {RESULT}. The command that started it "
            "goes on with it."
        )
    spec, encoding = read_spec(found), read_table_encoding(found)
    if encoding is not None:
        _require_fitting(found, encoding, result.model["options"])
    model = read_model(found, spec, read_json(found / RESULT))
    return Trained(found, model, encoding, spec, result)


def load_export(folder: Path) -> Exported:
    """An exported model, as ``load``; its files must be those that were exported."""
    manifest, settings = read_json(folder / MANIFEST), read_json(folder / SETTINGS)
    for name, one in ((MANIFEST, manifest), (SETTINGS, settings)):
        if (one.get("kind"), one.get("format")) != (KIND, FORMAT):
            raise FileError(f"{folder / name} is damaged, or of another version of Plumbline.")
    if changed := changed_files(folder, manifest["sha256"]):
        raise FileError(f"{folder} is not what was exported: {'; '.join(changed)}. Copy it again.")
    if reference := settings["network"].get("reference"):
        require_declared("model", reference, folder)
    try:
        model = build(settings["network"])
        model.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    except Exception as error:  # damage can look like anything
        raise FileError(
            f"{folder / WEIGHTS} does not load into the network that {SETTINGS} describes "
            f"({type(error).__name__}). Copy the folder again."
        ) from error
    return Exported(folder, model.eval(), read_table_encoding(folder), settings)


def _require_fitting(folder: Path, encoding: TableEncoding, options: dict[str, Any]) -> None:
    """Refuses an encoding that is not of this run."""
    sizes = {"features": len(encoding.features), "classes": len(encoding.classes) or 1}
    if any(options.get(name, size) != size for name, size in sizes.items()):
        raise FileError(
            f"{folder / ENCODING} has {sizes['features']} features and {sizes['classes']} "
            f"classes, and the network {options.get('features')} and {options.get('classes')}: it "
            "is not of this run. `plumbline verify` says which file was changed."
        )


def only_run(folder: Path) -> Path:
    """The folder itself, if it is a run's, or the only run's folder in it.

    Raises:
        FileError: If there is none, or more than one.
    """
    runs = runs_in(folder)
    if len(runs) > 1:
        names = ", ".join(one.name for one in runs[:3])
        raise FileError(f"{folder} has {len(runs)} runs; give the folder of one, such as {names}.")
    return runs[0]
