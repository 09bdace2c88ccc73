"""One run of a recipe: a method, a seed, a folder.

The folder holds the recipe as run, versions, the metrics along the way, the ledger, the checkpoint,
the privacy statement, a manifest of all these and the result. A run that was interrupted goes on
from its checkpoint; one that is finished is not repeated. The result is written last, in one piece.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import io
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from plumbline import data, models
from plumbline.data import Part, Splits
from plumbline.data.base import LOADERS
from plumbline.experiments.files import (
    FileError,
    append_row,
    finite,
    kept_rows,
    make_folder,
    read_json,
    write_bytes,
    write_json,
    write_text,
)
from plumbline.experiments.manifest import write_manifest
from plumbline.experiments.probing import Probing
from plumbline.experiments.recipe import (
    DataPart,
    MethodPart,
    ModelPart,
    OptimizerPart,
    Recipe,
)
from plumbline.fairness import GroupReport, Outcomes, Undefined, evaluate, plain
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.ledger import Ledger
from plumbline.methods import Method
from plumbline.models import scattering
from plumbline.training import Private, make_private, resume
from plumbline.training.checkpoint_file import remove_pair
from plumbline.training.distributed import Ranks
from plumbline.training.fitting import StepInfo
from plumbline.training.looking import evaluating

RESULT, METRICS, CHECKPOINT, MODEL = "result.json", "metrics.jsonl", "checkpoint.pt", "model.pt"
LOSS = nn.CrossEntropyLoss(reduction="none")
_SAVE_SECONDS, _SAVE = 20.0, "save"
_RESERVE = 50  # steps charged at a time: a disk may take longer to be sure than a step takes
_EVALUATED_AT_ONCE = 4096


@dataclass(frozen=True)
class RunSpec:
    """What is run: a row of a recipe with a seed.

    Attributes:
        recipe: The recipe it belongs to.
        method: Which of its rows.
        seed: Which of its seeds.
        held_out: The share of the training records that the run is judged on instead of the test
            part, and not trained on; 0 for a run that is judged on the test part.
        noise_seed: Of batches and noise where it is not ``seed``; None draws them securely.
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
    def facts(self) -> dict[str, Any]:
        """All that decides the result, as plain values; what is left at its default is left out."""
        return {
            "data": _short(self.data),
            "model": _short(self.model),
            "budget": _short(self.recipe.budget),
            "optimizer": _short(self.optimizer),
            "averaging": self.averaging,
            "probe": self.recipe.probe and _short(self.recipe.probe),
            "log_every": self.recipe.log_every,
            "method": _short(self.method),
            "seed": self.seed,
            "held_out": self.held_out,
            "noise_seed": self.noise_seed,
        }

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

    def plain(self) -> dict[str, Any]:
        """As plain values, for another process."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "method": self.method.model_dump(mode="json"),
            "seed": self.seed,
            "held_out": self.held_out,
            "noise_seed": self.noise_seed,
        }

    @classmethod
    def of(cls, fields: dict[str, Any]) -> RunSpec:
        """From ``plain``."""
        recipe, method = Recipe.of(fields["recipe"]), MethodPart.model_validate(fields["method"])
        return cls(recipe, method, fields["seed"], fields["held_out"], fields["noise_seed"])


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        method: The method's title.
        seed: The seed.
        epsilon: Spent; infinite for a method without a guarantee.
        steps: How many steps were made.
        seconds: How long they took, all sessions together.
        report: Metrics of the test part by group.
        statement: The guarantee in words.
        folder: Where the run is.
    """

    method: str
    seed: int
    epsilon: float
    steps: int
    seconds: float
    report: GroupReport
    statement: str
    folder: str


def run(
    spec: RunSpec, root: str | os.PathLike[str], told: Callable[[int, int], None] | None = None
) -> RunResult:
    """Makes the run in its folder below ``root``, or reads its result if it is finished.

    Where several processes make the run, all call this, and the first one has the folder.

    Args:
        spec: What to run.
        root: The folder of the experiment.
        told: Is told after every step how many are done, of how many.
    """
    folder, ranks = Path(root) / spec.folder, Ranks.here()
    with ranks.failing_together():
        finished = ranks.from_first("the result", lambda: read_result(folder))
        if finished is not None:
            if ranks.first:  # of a run that was killed when it had just ended
                remove_pair(folder / CHECKPOINT)
            return finished
        with _one_thread():
            if not ranks.first:
                _share_made(spec, folder)
            return ranks.from_first("the end", lambda: _made(spec, folder, told))


def _made(spec: RunSpec, folder: Path, told: Callable[[int, int], None] | None) -> RunResult:
    make_folder(folder)
    write_json(folder / "recipe.json", {**spec.facts, "name": spec.recipe.name})
    write_json(folder / "versions.json", versions())
    splits = load_data(spec)
    with Ledger.open(folder / "ledger", reserve=_RESERVE) as ledger:
        private = started(spec, splits, ledger, folder / CHECKPOINT)
        # A run that is killed before its first checkpoint would not be known again, if it is secure
        # or goes on with another number of processes.
        private.save(folder / CHECKPOINT)
        log = _Log(private, splits, folder, spec.recipe.log_every, told)
        probing = Probing.of(spec, private, splits, folder) if spec.recipe.probe else None
        private.fit([log, probing] if probing else [log], progress=False)
        if private.steps_done < private.stop:  # fit stops in good order when interrupted
            private.save(folder / CHECKPOINT)
            raise KeyboardInterrupt
        report = judged(private, splits)
        if probing:
            probing.finish(private)
        result = RunResult(
            method=spec.method.title,
            seed=spec.seed,
            epsilon=private.epsilon(exact=True),
            steps=private.steps_done,
            seconds=log.seconds,
            report=report,
            statement=private.statement(),
            folder=spec.folder,
        )
        private.close()
    write_text(folder / "statement.txt", result.statement + "\n")
    with private.averaged() if spec.averaging is not None else nullcontext():
        write_model(private.model, folder / MODEL)
    text = json.dumps(_plain_result(result), indent=2) + "\n"
    write_manifest(folder, run=private.run, ledger=ledger.position, result=text, name=RESULT)
    write_text(folder / RESULT, text)
    remove_pair(folder / CHECKPOINT)
    return result


def _share_made(spec: RunSpec, folder: Path) -> None:
    """Another rank's part in ``_made``: its share of every step; the first writes and judges."""
    private = started(spec, load_data(spec), None, folder / CHECKPOINT)
    private.save(folder / CHECKPOINT)
    private.fit([lambda *_: _save_if_wished(private, folder)], progress=False)
    if private.steps_done < private.stop:
        private.save(folder / CHECKPOINT)
        raise KeyboardInterrupt
    private.close()


def _save_if_wished(private: Private, folder: Path) -> bool:
    """All ranks save after the same step: when the first one finds that it is time."""
    wished = private.ranks.granted(_SAVE)
    if wished:
        private.save(folder / CHECKPOINT)
    return wished


@contextmanager
def _one_thread() -> Iterator[None]:
    """A sum's rounding depends on the threads that share it; with one, a run is always the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
        report = _read_report(stored.pop("report"))
        stored["epsilon"] = float(stored["epsilon"])
        return RunResult(report=report, **stored)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} is damaged: it has not the fields of a result ({error}). Restore it from a "
            "copy, or delete the folder and make the run again."
        ) from error


def read_spec(folder: Path) -> RunSpec:
    """What was run in a folder, from its settings.

    Raises:
        FileError: If they are damaged.
        RecipeError: If they make no recipe.
    """
    path = folder / "recipe.json"
    fields = read_json(path)
    known = {name: fields[name] for name in Recipe.model_fields if fields.get(name) is not None}
    rows = {"methods": [fields.get("method")], "seeds": [fields.get("seed")], "baseline": None}
    recipe = Recipe.of({**known, **rows}, str(path))
    held_out, noise_seed = fields.get("held_out"), fields.get("noise_seed", "own")
    if not isinstance(held_out, float) or not (
        noise_seed in ("own", None) or isinstance(noise_seed, int)
    ):
        raise FileError(f"{path} is damaged: held_out is {held_out!r}, noise_seed {noise_seed!r}.")
    return RunSpec(recipe, recipe.methods[0], recipe.seeds[0], held_out, noise_seed)


def load_data(spec: RunSpec) -> Splits:
    """The run's data: split by its seed where the loader splits at all, the part that is held out
    in place of the test part, and features in place of images.
    """
    options = dict(spec.data.options)
    if "seed" in inspect.signature(LOADERS[spec.data.name]).parameters:
        options = {"seed": spec.seed, **options}
    scales = spec.data.scales if spec.data.features else None
    splits = _loaded(spec.data.name, json.dumps(options), scales)
    return splits if not spec.held_out else _held_out(splits, spec.held_out, spec.seed)


@functools.lru_cache(maxsize=2)
def _loaded(name: str, options: str, scales: int | None) -> Splits:
    """Loaded once for the runs of a process that share it."""
    splits = data.load(name, **json.loads(options))
    if scales is None:
        return splits
    train, test = (_scattered(part, scales) for part in (splits.train, splits.test))
    return replace(splits, train=train, test=test)


def _scattered(part: Part, scales: int) -> Part:
    whole, index = part.origin or (part, None)
    x = scattering.features(whole, scales=scales, cache=cache_folder())
    return Part(x if index is None else x[index], part.y, part.sensitive_features)


def cache_folder() -> Path:
    """Where features are kept: ``PLUMBLINE_CACHE``, or a folder below the user's own cache."""
    return Path(os.environ.get("PLUMBLINE_CACHE", Path.home() / ".cache" / "plumbline"))


def _held_out(splits: Splits, share: float, seed: int) -> Splits:
    """A validation part from the training records, the same for every method."""
    order = torch.randperm(len(splits.train), generator=torch.Generator().manual_seed(seed))
    count = max(1, round(share * len(splits.train)))
    train, held = splits.train.select(order[count:]), splits.train.select(order[:count])
    return replace(splits, train=train, test=held)


def judged(private: Private, splits: Splits) -> GroupReport:
    """The metrics of a run's model, with its averaged weights where it averages them."""
    if private.averaging is None:
        return measure(private.model, splits.test, splits.groups)
    with private.averaged() as model:
        return measure(model, splits.test, splits.groups)


def measure(model: nn.Module, part: Part, groups: tuple[str, ...]) -> GroupReport:
    """A model's metrics on a part of the data, by group, in evaluation mode."""
    logits, labels = [], []
    with evaluating(model), torch.no_grad():
        for index in torch.split(torch.arange(len(part)), _EVALUATED_AT_ONCE):
            x, y = part.fetch(index)
            logits.append(model(x))
            labels.append(y)
    outcomes = Outcomes.from_logits(torch.cat(logits), torch.cat(labels))
    features = part.sensitive_features
    values = np.zeros(len(part), dtype=int) if features is None else features.numpy()
    names = dict(enumerate(groups)) if groups and features is not None else {0: "all"}
    return evaluate(outcomes, sensitive_features=values, names=names)


def started(
    spec: RunSpec, splits: Splits, ledger: Ledger | None = None, checkpoint: Path | None = None
) -> Private:
    """The run on its data before its next step: the first, or the one after a checkpoint.

    Args:
        spec: What is run.
        splits: Its data.
        ledger: Where it is charged, if anywhere.
        checkpoint: Where it goes on from, if there is such a file.
    """
    torch.manual_seed(spec.seed)
    model = models.build(spec.model.name, **spec.model.options)
    method = spec.method.build()
    settings: dict[str, Any] = {
        "loss": LOSS,
        "method": method,
        "budget": budget_of(spec, method, len(splits.train)),
        "accountant": spec.recipe.budget.accountant,
        "relation": spec.recipe.budget.relation,
        "sensitive_features": splits.train.sensitive_features,
        "seed": spec.seed if spec.noise_seed == "own" else spec.noise_seed,
        "deterministic": True,
        "ledger": ledger,
        "averaging": spec.averaging,
    }
    made = spec.optimizer.build(model)
    there = Ranks.here().from_first("the folder", lambda: checkpoint and checkpoint.is_file())
    if checkpoint is not None and there:
        return resume(checkpoint, model, made, splits.train, **settings)
    return make_private(model, made, splits.train, **settings)


def budget_of(spec: RunSpec, method: Method, records: int) -> Budget:
    """The recipe's budget for a row.

    A method without a guarantee gets the noise that DP-SGD would have. A row with a batch size or
    a number of epochs of its own gets the epsilon that the recipe's plain DP-SGD would spend.
    """
    part = spec.recipe.budget
    own = {"expected_batch_size": spec.method.expected_batch_size, "epochs": spec.method.epochs}
    given = {name: value for name, value in own.items() if value is not None}
    if not given and (method.unbounded_reason is None or part.noise_multiplier is not None):
        return part.budget()

    def resolved(budget: Budget) -> Plan:
        return budget.resolve(records, accountant=part.accountant, relation=part.relation)

    budget = part.budget()
    if given:
        epsilon = part.epsilon or resolved(budget).epsilon
        changes: dict[str, Any] = {"epsilon": epsilon, "noise_multiplier": None, **given}
        if "epochs" in given:
            changes["steps"] = None
        budget = replace(budget, **changes)
    if method.unbounded_reason is None:
        return budget
    noise = resolved(budget).noise_multiplier
    return replace(budget, epsilon=None, noise_multiplier=noise)


class _Log:
    """After every step: progress, now and then a row of metrics and a checkpoint."""

    def __init__(
        self,
        private: Private,
        splits: Splits,
        folder: Path,
        every: int,
        told: Callable[[int, int], None] | None,
    ) -> None:
        self._splits, self._folder, self._every, self._told = splits, folder, every, told
        rows = kept_rows(folder / METRICS, private.steps_done)
        self._earlier = float(rows[-1]["seconds"]) if rows else 0.0
        self._start = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the run has taken, all sessions together."""
        return self._earlier + time.monotonic() - self._start

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Logs, saves, tells."""
        if self._told is not None:
            self._told(info.step, info.steps)
        if info.step % self._every == 0 or info.step == info.steps:
            report = judged(private, self._splits)
            row = {
                "step": info.step,
                "epsilon": finite(info.epsilon),
                "seconds": self.seconds,
                "overall": plain(report.overall),
                "by_group": plain(report.by_group),
            }
            append_row(self._folder / METRICS, row)
        if time.monotonic() - self._saved > _SAVE_SECONDS and info.step < info.steps:
            private.ranks.wish(_SAVE)
        if _save_if_wished(private, self._folder):
            self._saved = time.monotonic()


def _plain_result(result: RunResult) -> dict[str, Any]:
    return {
        "method": result.method,
        "seed": result.seed,
        "epsilon": finite(result.epsilon),
        "steps": result.steps,
        "seconds": result.seconds,
        "statement": result.statement,
        "folder": result.folder,
        "report": {
            "overall": plain(result.report.overall),
            "by_group": plain(result.report.by_group),
            "sizes": dict(result.report.sizes),
            "minimum_size": result.report.minimum_size,
        },
    }


def _read_report(stored: dict[str, Any]) -> GroupReport:
    def number(value: Any) -> Any:
        return Undefined(value.removeprefix("undefined: ")) if isinstance(value, str) else value

    return GroupReport(
        overall={name: number(value) for name, value in stored["overall"].items()},
        by_group={
            group: {name: number(value) for name, value in values.items()}
            for group, values in stored["by_group"].items()
        },
        sizes=stored["sizes"],
        minimum_size=stored["minimum_size"],
    )


def _short(part: BaseModel) -> dict[str, Any]:
    """As plain values, without what is left at its default: a new option moves no old folder."""
    return part.model_dump(mode="json", exclude_defaults=True)


def versions() -> dict[str, str]:
    """What a run is made with."""
    return {
        "plumbline": importlib.metadata.version("plumbline"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def write_model(model: nn.Module, path: Path) -> None:
    """Writes the weights; read them with ``torch.load(path, weights_only=True)``."""
    # In memory first: torch does not say what a full disk has refused.
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    write_bytes(path, buffer.getvalue())
