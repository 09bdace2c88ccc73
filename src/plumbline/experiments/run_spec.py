"""What one run is: a row of a recipe with a seed; and the name of its folder."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from torch import Tensor, nn

from plumbline import methods
from plumbline.data import Splits
from plumbline.data.table_plan import TEST_FRACTION
from plumbline.experiments.files import EXPORTED, RECIPE, FileError, read_json
from plumbline.experiments.named_code import check_recipe
from plumbline.experiments.objects import found, is_object, present
from plumbline.experiments.recipe import DataPart, MethodPart, ModelPart, OptimizerPart, Recipe
from plumbline.experiments.recipe_parts import accepts
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.release import StepRelease
from plumbline.methods import Method
from plumbline.models import MODELS
from plumbline.objectives import LOSSES, build_loss
from plumbline.training.moments import mean_release

CHOSEN_ON = 0.2
"""The share of the training records on which a threshold is chosen, where one is."""


@dataclass(frozen=True)
class RunSpec:
    """What is run: a row of a recipe with a seed.

    Attributes:
        recipe: The recipe it belongs to.
        method: Which of its rows.
        seed: Which of its seeds.
        held_out: The share of the training records that the run is judged on instead of the test
            part, and not trained on; 0 for a run that is judged on the test part.
        noise_seed: Of batches and noise; "own" is what the recipe says, None draws them securely.
    """

    recipe: Recipe
    method: MethodPart
    seed: int
    held_out: float = 0.0
    noise_seed: int | Literal["own"] | None = "own"

    @property
    def data(self) -> DataPart:
        """The row's own data, or the recipe's."""
        return self.method.data or self.recipe.data

    @property
    def model(self) -> ModelPart:
        """The row's own network, or the recipe's."""
        return self.method.model or self.recipe.model

    @property
    def optimizer(self) -> OptimizerPart:
        """The row's own optimizer, or the recipe's; at the row's learning rate if it has one."""
        part = self.method.optimizer or self.recipe.optimizer
        rate = self.method.learning_rate
        return part if rate is None else part.model_copy(update={"learning_rate": rate})

    @property
    def averaging(self) -> float | None:
        """The decay of averaged weights: the row's own, or the recipe's."""
        return self.recipe.averaging if self.method.averaging is None else self.method.averaging

    @property
    def random_seed(self) -> int | None:
        """Of batches and noise; None draws them securely."""
        if self.noise_seed != "own":
            return self.noise_seed
        return None if self.recipe.noise == "secure" else self.seed

    @property
    def before(self) -> tuple[StepRelease, ...]:
        """What is asked of the training records before the first step, a table's schema first."""
        schema = () if self.schema is None else (self.schema,)
        if self.model.centre is None:
            return schema
        return (*schema, mean_release(self.model.centre, seeded=self.random_seed is not None))

    @property
    def schema(self) -> StepRelease | None:
        """What was released to find the schema of a table, before this run and others like it."""
        found = self.data.found
        return None if found is None else StepRelease.from_dict(found.release)

    @property
    def public_records(self) -> int | None:
        """The number of training records that is public, if the data are a table with one."""
        rows, options = self.data.options.get("records"), self.data.options
        if type(rows) is not int:
            return None
        test = 0.0 if options.get("test") else options.get("test_fraction", TEST_FRACTION)
        for share in (test, self.held_out, self.chosen_on):
            rows = max(1, round(rows * (1 - share)))
        return rows

    @property
    def chosen_on(self) -> float:
        """The share of the training records on which a threshold is chosen."""
        return CHOSEN_ON if self.recipe.threshold == "auto" else 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """All that decides the result, as plain values; what is left at its default is left out."""
        return {
            "data": _short(self.data),
            "model": _short(self.model),
            "loss": _short(self.recipe.loss),
            "budget": _short(self.recipe.budget),
            "optimizer": _short(self.optimizer),
            "averaging": self.averaging,
            "probe": self.recipe.probe and _short(self.recipe.probe),
            "log_every": self.recipe.log_every,
            "method": _short(self.method),
            "seed": self.seed,
            "held_out": self.held_out,
            "noise_seed": self.noise_seed,
            "noise": self.recipe.noise,
            **self._rarely_given,
        }

    @property
    def _rarely_given(self) -> dict[str, Any]:
        """What is among the facts only if it is not left at its default."""
        names = ("threshold", "class_weights", "isolation", "max_physical_batch")
        fields: dict[str, Any] = self.recipe.model_dump(
            mode="json", include=set(names), exclude_defaults=True
        )
        return fields

    @property
    def name(self) -> str:
        """The row and the seed, for people."""
        return f"{self.method.title}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of its folder: readable, and different for different settings."""
        digest = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:10]
        title = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.method.title)
        return f"{title}-seed{self.seed}-{digest}"

    def build_model(self, splits: Splits) -> nn.Module:
        """The network, for the data: a copy of a module that was given, else built anew."""
        made = present(MODELS, self.model.name)
        if isinstance(made, nn.Module):
            return copy.deepcopy(made)
        built: nn.Module = made(**self.model_options(splits))
        return built

    def model_options(self, splits: Splits) -> dict[str, Any]:
        """The options of the network's builder, with what follows from the data."""
        part = self.model
        options = part.options if part.centre is None else {**part.options, "centred": True}
        sizes = {"features": width_of(splits), "classes": len(splits.classes) or 1}
        make = found(MODELS, part.name)
        filled = {name: size for name, size in sizes.items() if size and accepts(make, name)}
        return {**filled, **options}

    def method_settings(self, groups: int) -> dict[str, Any]:
        """The method's settings, with the groups' values where it treats groups differently."""
        row = self.method
        takes = not is_object(row.name) and accepts(methods.find(row.name).make, "groups")
        filled = {"groups": list(range(groups))} if takes and groups else {}
        return {**filled, **row.settings}

    def build_method(self, groups: int) -> Method:
        """The method, for data of so many groups."""
        return self.method.model_copy(update={"settings": self.method_settings(groups)}).build()

    def build_loss(self) -> Any:
        """One loss for each record: a function of output and target, or of model and batch."""
        part = self.recipe.loss
        return build_loss(present(LOSSES, part.name), part.options)


def width_of(splits: Splits) -> int:
    """How many numbers a record has; 0 where it is not a row of numbers."""
    x = splits.train.x
    if isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point():
        return x.shape[1]
    return len(splits.features)


def is_run(folder: Path) -> bool:
    """Whether a folder is that of one run."""
    path = folder / RECIPE
    return path.is_file() and "methods" not in read_json(path)


def only_study(folder: Path) -> Path:
    """The folder itself, or the only run's or comparison's below it, as ``--out`` leaves them.

    Raises:
        FileError: If there are several.
    """
    if (folder / RECIPE).is_file():
        return folder
    for place in ("*", "*/*"):
        found = [path.parent for path in sorted(folder.glob(f"{place}/{RECIPE}"))]
        if len(found) > 1:
            names = ", ".join(map(str, found[:3]))
            raise FileError(f"{folder} holds {len(found)} runs; give one of them, such as {names}.")
        if found:
            return found[0]
    return folder


def runs_in(folder: Path) -> list[Path]:
    """The folders of the runs: the folder itself, those in it, or of the only experiment in it.

    Raises:
        FileError: If there are none.
    """
    if not folder.is_dir():
        raise FileError(f"There is no folder {folder}; give the one of a run or of a comparison.")
    if is_run(folder):
        return [folder]
    runs = [one for one in sorted(folder.iterdir()) if one.is_dir() and is_run(one)]
    if not runs and (below := only_study(folder)) != folder:
        return runs_in(below)
    if not runs:
        read_spec(folder)  # which says what is missing
    return runs


def read_spec(folder: Path) -> RunSpec:
    """What was run in a folder, from its settings.

    Raises:
        FileError: If it is not a run's folder, or the settings are damaged.
        RecipeError: If they make no recipe.
        UnsafeCode: If they name code that is not run on the word of a folder.
    """
    path = folder / RECIPE
    if not path.is_file():
        words = "`plumbline train` and `plumbline compare` make such folders."
        if (folder / "settings.json").is_file():
            words = (
                "An earlier version of Plumbline made it, whose runs on tables are no longer read; "
                "make the run again."
            )
        elif (folder / EXPORTED).is_file():
            words = (
                "It is an exported model, which tells its epsilon; what confirms it is in the "
                "folder of its run, which stayed where it was made."
            )
        raise FileError(f"{folder} is not the folder of a run: it has no {RECIPE}. {words}")
    fields = read_json(path)
    check_recipe(fields, folder)
    known = {name: fields[name] for name in Recipe.model_fields if fields.get(name) is not None}
    rows = {"methods": [fields.get("method")], "seeds": [fields.get("seed")], "baseline": None}
    recipe = Recipe.of({**known, **rows}, str(path))
    held_out, noise_seed = fields.get("held_out"), fields.get("noise_seed", "own")
    if not isinstance(held_out, float) or not (
        noise_seed in ("own", None) or isinstance(noise_seed, int)
    ):
        raise FileError(f"{path} is damaged: held_out is {held_out!r}, noise_seed {noise_seed!r}.")
    return RunSpec(recipe, recipe.methods[0], recipe.seeds[0], held_out, noise_seed)


def budget_of(spec: RunSpec, method: Method, records: int) -> Budget:
    """The recipe's budget for a row.

    A method without a guarantee gets the noise that DP-SGD would have. A row with a batch size or
    a number of epochs of its own gets the epsilon that the recipe's plain DP-SGD would spend.
    """
    part = spec.recipe.budget
    if spec.method.epsilon is not None:
        part = part.model_copy(update={"epsilon": spec.method.epsilon, "noise_multiplier": None})
    budget = part.budget()
    if given := spec.method.own_sizes:
        plain = budget.resolve(records, accountant=part.accountant, relation=part.relation)
        epsilon = part.epsilon or plain.epsilon
        budget = replace(budget, epsilon=epsilon, noise_multiplier=None, **given)
    return method.budget(budget, records, accountant=part.accountant, relation=part.relation)


def _short(part: BaseModel) -> dict[str, Any]:
    """As plain values, without what is left at its default: a new option moves no old folder."""
    return part.model_dump(mode="json", exclude_defaults=True)
