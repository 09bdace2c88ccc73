"""``train``: one run on anybody's data; ``load``: the trained model of a run's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from plumbline.data import DataError, TableEncoding, read_encoding
from plumbline.experiments.compatibility import check_fits
from plumbline.experiments.files import ENCODING, RESULT, FileError, read_json
from plumbline.experiments.recipe import Recipe
from plumbline.experiments.run_result import RunResult, read_model, read_result
from plumbline.experiments.run_spec import RunSpec, read_spec, runs_in
from plumbline.experiments.running import run
from plumbline.experiments.settling import settled
from plumbline.instruments.describing import METHOD, Description, recipe_of
from plumbline.without_trace import evaluating


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run, with its model ready to predict.

    Attributes:
        folder: Where it is.
        spec: What was run.
        result: What came of it: metrics by group, epsilon, the statement.
        model: The trained model, in evaluation mode.
        encoding: How rows of a table become what the model sees; None for other data.
    """

    folder: Path
    spec: RunSpec
    result: RunResult
    model: nn.Module
    encoding: TableEncoding | None

    @property
    def epsilon(self) -> float:
        """What the run has spent; infinite without a guarantee."""
        return self.result.epsilon

    def statement(self) -> str:
        """The guarantee in words, with its assumptions."""
        return self.result.statement

    def predict(self, rows: Any) -> Tensor:
        """The probability of each class, ``[n, classes]``.

        Args:
            rows: What the model takes; or, of a run on a table, a csv or parquet file with the
                columns that it learned from.
        """
        if isinstance(rows, str | os.PathLike):
            if self.encoding is None:
                raise ValueError(
                    f"{self.folder} has no {ENCODING}: the run was not made on a table, so that a "
                    "file cannot be read as one. Give what the model takes."
                )
            rows = self.encoding.read(rows)
        with evaluating(self.model), torch.no_grad():
            outputs: Tensor = self.model(rows)
            return outputs.double().softmax(1)


def spec_of(recipe: Recipe, seed: int | None = None) -> RunSpec:
    """The run of a recipe's first row; a seed that is given draws its noise too."""
    if seed is None:
        return RunSpec(recipe, recipe.methods[0], recipe.seeds[0])
    return RunSpec(recipe, recipe.methods[0], seed, noise_seed=seed)


def train(
    recipe: Recipe | str | os.PathLike[str] | None = None,
    *,
    seed: int | None = None,
    folder: str | os.PathLike[str] = "runs",
    ledger: str | os.PathLike[str] | None = None,
    tensorboard: bool = False,
    accept_loss: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    **description: Unpack[Description],
) -> Trained:
    """Trains one model privately, or reads a run that is finished already.

    Args:
        recipe: A recipe, its path or its name; or leave it out and describe the run.
        seed: Makes the run repeatable, and its noise known to whoever knows the seed. Without it
            the noise of a run on one's own data is secure.
        folder: Runs are kept in a folder of the recipe's name below this one.
        ledger: Where the run is charged; by default a ledger in its folder.
        tensorboard: Whether to log to TensorBoard, in the run's folder.
        accept_loss: Go on, and end, also if more than a twentieth of the steps were lost.
        on_progress: Called with (done, total) after each step.
        description: The parts of the run.
    """
    if recipe is None:
        description.setdefault("method", METHOD)
        description.setdefault("seeds", [0])
    made = recipe_of(recipe, **description)
    root = Path(folder) / made.name
    made = settled(made, root, seed=seed, ledger=ledger).recipe
    spec = spec_of(made, seed)
    if not (root / spec.folder / RESULT).is_file():
        check_fits(spec)
    run(spec, root, on_progress, ledger=ledger, tensorboard=tensorboard, accept_loss=accept_loss)
    return load(root / spec.folder)


def load(folder: str | os.PathLike[str]) -> Trained:
    """The trained model of a finished run, with what it needs to predict.

    Args:
        folder: The folder of a run; or of an experiment that has a single run.

    Raises:
        FileError: If it is no such folder, the run is not finished, or a file is damaged.
        UnknownPart: If its network was a Python object that was not given in this process.
    """
    found = only_run(Path(folder))
    result = read_result(found)
    if result is None:
        raise FileError(
            f"The run in {found} is not finished: it has no {RESULT}. The command that started it "
            "goes on with it."
        )
    spec = read_spec(found)
    encoding = None
    if (found / ENCODING).is_file():
        try:
            encoding = read_encoding(found / ENCODING)
        except DataError as error:
            raise FileError(str(error)) from error
    model = read_model(found, spec, read_json(found / RESULT))
    return Trained(found, spec, result, model, encoding)


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
