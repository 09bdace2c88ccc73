"""How the image records' settings were found: equal tuning over methods x features x epsilon.

`python -m benchmarks.record_search mnist fashion-mnist cifar10` gives every way of clipping, on
every kind of fixed public features and at every epsilon, the same number of trials, drawn alike,
and judges them by 5,000 training records that are held out. The models are linear, so that a
record's gradient is `(p - y) x^T` in closed form and a trial takes seconds; the factors are those
of `plumbline.clipping`, the noise that of `plumbline.mechanism`. Results are added to
benchmarks/results/record_search.json as they come; what is found goes into recipes/records, and
only the runs of those recipes are reported. Epsilon covers none of the search.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plumbline import Budget, data
from plumbline.clipping import Automatic, Clipping, Flat, Global
from plumbline.experiments.running import cache_folder
from plumbline.models import scattering

RESULTS = Path(__file__).parent / "results" / "record_search.json"
FEATURES = ("scattering", "pixels")
METHODS = ("dpsgd", "automatic", "global_scaling")
EPSILONS = {"cifar10": (3.0,)}
HELD_OUT, DELTA, MOMENTUM = 5000, 1e-5, 0.9


@dataclass(frozen=True)
class Trial:
    """A point of the search. `reach` is the learning rate times C: how far a record can pull."""

    reach: float
    clip: float
    bound: float
    epochs: int
    batch: int
    averaging: float

    @classmethod
    def drawn(cls, draw: random.Random) -> Trial:
        """One for every method: what a method has no use for it does not look at."""
        return cls(
            reach=_log(draw, 0.15, 1.2),
            clip=_log(draw, 0.05, 5.0),
            bound=_log(draw, 10.0, 120.0),
            epochs=draw.choice([20, 30, 45, 60]),
            batch=draw.choice([2048, 4096, 8192]),
            averaging=draw.choice([0.98, 0.99, 0.995]),
        )

    def clipping(self, method: str) -> Clipping:
        """The strategy, as the method of that name has it."""
        if method == "dpsgd":
            return Flat(self.clip)
        return Automatic(self.clip) if method == "automatic" else Global(self.clip, self.bound)

    def learning_rate(self, method: str) -> float:
        """Global scaling shortens everything by the bound, which the rate makes up for."""
        rate = self.reach / self.clip
        return rate * self.bound / 40 if method == "global_scaling" else rate


@dataclass(frozen=True)
class Task:
    """Features `[n, d]` and labels of the part that trains and of the part that judges."""

    x: Tensor
    y: Tensor
    judged_x: Tensor
    judged_y: Tensor

    @classmethod
    def load(cls, name: str, features: str) -> Task:
        """The last `HELD_OUT` training records, in a fixed random order, judge."""
        options = {"allow_partial": True} if name == "cifar10" else {}
        part = data.load(name, **options).train
        if features == "scattering":
            found = scattering.features(part, cache=cache_folder())
        else:
            found = part.fetch(torch.arange(len(part)))[0]
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
        groups = found.shape[1] // 3 if features == "scattering" else 1
        norm = nn.GroupNorm(groups, found.shape[1], affine=False)
        x = torch.empty(len(part), found[0].numel())
        for start in range(0, len(part), 4096):
            x[start : start + 4096] = norm(found[start : start + 4096]).flatten(1)
        train, judged = order[:-HELD_OUT], order[-HELD_OUT:]
        return cls(x[train], part.y[train], x[judged], part.y[judged])


@torch.no_grad()
def accuracy(task: Task, epsilon: float, method: str, trial: Trial, seed: int = 0) -> float:
    """Of the averaged weights, on the held-out records, in percent."""
    records, width = task.x.shape
    rate, steps, noise = plan(epsilon, trial.epochs, trial.batch, records)
    clipping, learning_rate = trial.clipping(method), trial.learning_rate(method)
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(width)
    weights = torch.empty(10, width + 1).uniform_(-bound, bound, generator=generator)
    speed, average = torch.zeros_like(weights), weights.clone()
    lengths = (task.x.square().sum(1) + 1).sqrt()
    for step in range(steps):
        drawn = (torch.rand(records, generator=generator) < rate).nonzero()[:, 0]
        x = task.x[drawn]
        error = torch.softmax(x @ weights[:, :-1].t() + weights[:, -1], 1)
        error[torch.arange(len(drawn)), task.y[drawn]] -= 1
        error *= clipping.factors(error.norm(dim=1) * lengths[drawn])[:, None]
        total = torch.cat([error.t() @ x, error.sum(0)[:, None]], 1)
        total += torch.randn(total.shape, generator=generator) * noise * clipping.sensitivity
        speed.mul_(MOMENTUM).add_(total, alpha=1 / trial.batch)
        weights.sub_(speed, alpha=learning_rate)
        kept = min(trial.averaging, (1 + step) / (10 + step))
        average.mul_(kept).add_(weights, alpha=1 - kept)
    guesses = (task.judged_x @ average[:, :-1].t() + average[:, -1]).argmax(1)
    return 100 * float((guesses == task.judged_y).float().mean())


@cache
def plan(epsilon: float, epochs: int, batch: int, records: int) -> tuple[float, int, float]:
    """The sampling rate, the number of steps and the noise multiplier."""
    budget = Budget(epsilon=epsilon, delta=DELTA, epochs=epochs, expected_batch_size=batch)
    made = budget.resolve(records)
    return made.sampling_rate, made.steps, made.noise_multiplier


def search(name: str, trials: int) -> Iterator[dict[str, Any]]:
    """Every cell's trials, one row each."""
    for features in FEATURES:
        task = Task.load(name, features)
        for epsilon in EPSILONS.get(name, (1.0, 2.0, 3.0)):
            for number in range(trials):
                trial = Trial.drawn(random.Random(number))
                for method in METHODS:
                    start = time.perf_counter()
                    yield {
                        "task": name,
                        "epsilon": epsilon,
                        "features": features,
                        "method": method,
                        "accuracy": accuracy(task, epsilon, method, trial),
                        "learning_rate": trial.learning_rate(method),
                        "seconds": time.perf_counter() - start,
                        **asdict(trial),
                    }


def _log(draw: random.Random, low: float, high: float) -> float:
    return float(f"{math.exp(draw.uniform(math.log(low), math.log(high))):.3g}")


def main() -> None:
    """Searches, keeps every row, prints the best of each cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=["mnist", "fashion-mnist", "cifar10"])
    parser.add_argument("--trials", type=int, default=8)
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for name in options.tasks:
        rows = [row for row in rows if row["task"] != name]
        for row in search(name, options.trials):
            rows.append(row)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
            print(json.dumps(row), flush=True)
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        cell = tuple(row[key] for key in ("task", "epsilon", "features", "method"))
        if cell not in best or row["accuracy"] > best[cell]["accuracy"]:
            best[cell] = row
    for row in best.values():
        print(row)


if __name__ == "__main__":
    main()
