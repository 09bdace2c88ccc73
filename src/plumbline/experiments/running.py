"""One run of a recipe: a method, a seed, a folder.

The folder holds the recipe as run, versions, the metrics along the way, the ledger, the checkpoint,
the privacy statement and the result. A run that was interrupted goes on from its checkpoint; one
that is finished is not repeated. The result is written last, in one piece.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from plumbline import data, models
from plumbline.data import Part, Splits
from plumbline.data.base import LOADERS
from plumbline.experiments.recipe import MethodPart, Recipe
from plumbline.fairness import GroupReport, Outcomes, Undefined, evaluate, plain
from plumbline.mechanism.ledger import Ledger
from plumbline.training import Private, make_private, resume
from plumbline.training.fitting import StepInfo

RESULT, METRICS, CHECKPOINT = "result.json", "metrics.jsonl", "checkpoint.pt"
LOSS = nn.CrossEntropyLoss(reduction="none")
_SAVE_SECONDS = 20.0
_EVALUATED_AT_ONCE = 4096


@dataclass(frozen=True)
class RunSpec:
    """What is run.

    Attributes:
        recipe: The recipe it belongs to.
        method: Which of its methods.
        seed: Which of its seeds.
    """

    recipe: Recipe
    method: MethodPart
    seed: int

    @property
    def facts(self) -> dict[str, Any]:
        """All that decides the result, as plain values."""
        whole = self.recipe.model_dump(mode="json")
        kept = {key: whole[key] for key in ("data", "model", "budget", "optimizer", "log_every")}
        return {**kept, "method": self.method.model_dump(mode="json"), "seed": self.seed}

    @property
    def folder(self) -> str:
        """The name of its folder: readable, and different for different settings."""
        digest = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:10]
        title = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.method.title)
        return f"{title}-seed{self.seed}-{digest}"


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

    Args:
        spec: What to run.
        root: The folder of the experiment.
        told: Is told after every step how many are done, of how many.
    """
    folder = Path(root) / spec.folder
    if (finished := read_result(folder)) is not None:
        return finished
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "recipe.json", {**spec.facts, "name": spec.recipe.name})
    _write(folder / "versions.json", _versions())
    splits = load_data(spec)
    with Ledger.open(folder / "ledger") as ledger:
        private = _started(spec, splits, folder, ledger)
        log = _Log(private, splits, folder, spec.recipe.log_every, told)
        private.fit([log], progress=False)
        report = measure(private.model, splits.test, splits.groups)
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
    (folder / "statement.txt").write_text(result.statement + "\n", encoding="utf-8")
    _write(folder / RESULT, _plain_result(result))
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def read_result(folder: Path) -> RunResult | None:
    """The result of a finished run, or None."""
    path = folder / RESULT
    if not path.is_file():
        return None
    stored = json.loads(path.read_text(encoding="utf-8"))
    report = stored.pop("report")
    stored["epsilon"] = float(stored["epsilon"])
    return RunResult(report=_read_report(report), **stored)


def load_data(spec: RunSpec) -> Splits:
    """The data set, split by the run's seed where its loader splits at all."""
    options = dict(spec.recipe.data.options)
    if "seed" in inspect.signature(LOADERS[spec.recipe.data.name]).parameters:
        options = {"seed": spec.seed, **options}
    return data.load(spec.recipe.data.name, **options)


def measure(model: nn.Module, part: Part, groups: tuple[str, ...]) -> GroupReport:
    """A model's metrics on a part of the data, by group, in evaluation mode."""
    training = model.training
    model.eval()
    logits, labels = [], []
    with torch.no_grad():
        for index in torch.split(torch.arange(len(part)), _EVALUATED_AT_ONCE):
            x, y = part.fetch(index)
            logits.append(model(x))
            labels.append(y)
    model.train(training)
    outcomes = Outcomes.from_logits(torch.cat(logits), torch.cat(labels))
    features = part.sensitive_features
    values = np.zeros(len(part), dtype=int) if features is None else features.numpy()
    names = dict(enumerate(groups)) if groups and features is not None else {0: "all"}
    return evaluate(outcomes, sensitive_features=values, names=names)


def _started(spec: RunSpec, splits: Splits, folder: Path, ledger: Ledger) -> Private:
    torch.manual_seed(spec.seed)
    model = models.build(spec.recipe.model.name, **spec.recipe.model.options)
    optimizer = spec.recipe.optimizer
    if spec.method.learning_rate is not None:
        optimizer = optimizer.model_copy(update={"learning_rate": spec.method.learning_rate})
    method = spec.method.build()
    settings: dict[str, Any] = {
        "loss": LOSS,
        "method": method,
        "budget": _budget(spec, method.unbounded_reason is not None, len(splits.train)),
        "accountant": spec.recipe.budget.accountant,
        "relation": spec.recipe.budget.relation,
        "sensitive_features": splits.train.sensitive_features,
        "seed": spec.seed,
        "deterministic": True,
        "ledger": ledger,
    }
    made = optimizer.build(model)
    if (folder / CHECKPOINT).is_file():
        return resume(folder / CHECKPOINT, model, made, splits.train, **settings)
    return make_private(model, made, splits.train, **settings)


def _budget(spec: RunSpec, unbounded: bool, records: int) -> Any:
    """The recipe's budget; a method without a guarantee gets the noise that DP-SGD would have."""
    part = spec.recipe.budget
    if not unbounded or part.noise_multiplier is not None:
        return part.budget()
    plan = part.budget().resolve(records, accountant=part.accountant, relation=part.relation)
    return part.budget(noise_multiplier=plan.noise_multiplier)


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
        self._earlier = _kept_rows(folder / METRICS, private.steps_done)
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
            report = measure(private.model, self._splits.test, self._splits.groups)
            row = {
                "step": info.step,
                "epsilon": _finite(info.epsilon),
                "seconds": self.seconds,
                "overall": plain(report.overall),
                "by_group": plain(report.by_group),
            }
            with (self._folder / METRICS).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        if time.monotonic() - self._saved > _SAVE_SECONDS and info.step < info.steps:
            private.save(self._folder / CHECKPOINT)
            self._saved = time.monotonic()


def _kept_rows(path: Path, steps: int) -> float:
    """Drops rows beyond the checkpoint that the run goes on from; returns the seconds before it."""
    if not path.is_file():
        return 0.0
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break  # the last line of a run that was killed
        if row["step"] <= steps:
            rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return float(rows[-1]["seconds"]) if rows else 0.0


def _plain_result(result: RunResult) -> dict[str, Any]:
    return {
        "method": result.method,
        "seed": result.seed,
        "epsilon": _finite(result.epsilon),
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


def _finite(value: float) -> float | str:
    return "inf" if value == float("inf") else value


def _versions() -> dict[str, str]:
    return {
        "plumbline": importlib.metadata.version("plumbline"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _write(path: Path, value: Any) -> None:
    """Writes JSON so that the file is whole or not there."""
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)
