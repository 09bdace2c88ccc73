"""How the image records' settings were found: equal tuning over methods x features x epsilon.

`python -m benchmarks.record_search mnist fashion-mnist cifar10` gives every way of clipping, on
every kind of features (pixels, scattering, and scattering less a mean that is released privately)
and at every epsilon, the same number of trials, drawn alike, and judges them by 5,000 training
records that are held out. The models are linear, so that a record's gradient is `(p - y) x^T` in
closed form, and all trials of an epsilon are trained at once on the same batches, each with its own
noise; the factors are those of `plumbline.clipping`, the noise multiplier that of
`plumbline.mechanism`. Every trial is kept in benchmarks/results/record_search.json; what is found
goes into recipes/records, and only the runs of those recipes are reported. Epsilon covers none of
the search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plumbline import Budget, data
from plumbline.clipping import Automatic, Clipping, Flat, Global
from plumbline.experiments.loading import cache_folder
from plumbline.mechanism.release import StepRelease
from plumbline.models import scattering
from plumbline.training.moments import mean_release, private_mean

RESULTS = Path(__file__).parent / "results" / "record_search.json"
FEATURES = ("scattering", "centred", "pixels")
CENTRE = mean_release(32.0, seeded=True)
"""The private mean that is subtracted from "centred" scattering features."""
METHODS = ("dpsgd", "automatic", "global_scaling")
EPOCHS = {1.0: 30, 2.0: 45, 3.0: 60}
EPSILONS = {"cifar10": (3.0,)}
BATCH, HELD_OUT, DELTA, MOMENTUM, CLASSES = 4096, 5000, 1e-5, 0.9, 10
DECAYS = (0.98, 0.99, 0.995)


@dataclass(frozen=True)
class Trial:
    """A point of the search. `reach` is the learning rate times C: how far a record can pull."""

    method: str
    reach: float
    clip: float
    bound: float

    @classmethod
    def drawn(cls, method: str, number: int) -> Trial:
        """The same for every method: what a method has no use for it does not look at."""
        draw = random.Random(number)
        return cls(method, _log(draw, 0.15, 1.2), _log(draw, 0.05, 5.0), _log(draw, 10.0, 120.0))

    @property
    def clipping(self) -> Clipping:
        """The strategy, as the method of that name has it."""
        if self.method == "dpsgd":
            return Flat(self.clip)
        if self.method == "automatic":
            return Automatic(self.clip)
        return Global(self.clip, self.bound)

    @property
    def learning_rate(self) -> float:
        """Global scaling shortens everything by the bound, which the rate makes up for."""
        rate = self.reach / self.clip
        return rate * self.bound / 40 if self.method == "global_scaling" else rate


@dataclass(frozen=True)
class Task:
    """Features `[n, d]` and labels of the part that trains and of the part that judges."""

    x: Tensor
    y: Tensor
    judged_x: Tensor
    judged_y: Tensor
    before: tuple[StepRelease, ...] = ()

    @classmethod
    def load(cls, name: str, features: str) -> Task:
        """The last `HELD_OUT` training records, in a fixed random order, judge."""
        options = {"allow_partial": True} if name == "cifar10" else {}
        part = data.load(name, **options).train
        if features != "pixels":
            found = scattering.features(part, cache=cache_folder())
        else:
            found = part.fetch(torch.arange(len(part)))[0]
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
        groups = 1 if features == "pixels" else found.shape[1] // 3
        norm = nn.GroupNorm(groups, found.shape[1], affine=False)
        x = torch.empty(len(part), found[0].numel())
        for start in range(0, len(part), 4096):
            x[start : start + 4096] = norm(found[start : start + 4096]).flatten(1)
        train, judged = order[:-HELD_OUT], order[-HELD_OUT:]
        if features == "centred":
            x -= private_mean(
                (x[index] for index in train.split(4096)),
                records=len(train),
                noise_multiplier=CENTRE.noise_multiplier,
                bound=math.sqrt(x.shape[1]),
                seed=0,
            )
        before = (CENTRE,) if features == "centred" else ()
        return cls(x[train], part.y[train], x[judged], part.y[judged], before)

    def accuracy(self, weights: Tensor) -> list[float]:
        """Of models `[K, classes, d + 1]`, on the records that judge, in percent."""
        outputs = _outputs(self.judged_x, weights)
        right = outputs.argmax(2) == self.judged_y[:, None]
        return [100 * float(share) for share in right.float().mean(0)]


@torch.no_grad()
def trained(task: Task, epsilon: float, trials: list[Trial]) -> dict[float, Tensor]:
    """The averaged weights of each trial, `[K, classes, d + 1]`, by the average's decay."""
    records, width = task.x.shape
    plan = Budget(
        epsilon=epsilon, delta=DELTA, epochs=EPOCHS[epsilon], expected_batch_size=BATCH
    ).resolve(records, before=task.before)
    generator = torch.Generator().manual_seed(0)
    weights = torch.empty(len(trials), CLASSES, width + 1)
    weights.uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=generator)
    speed = torch.zeros_like(weights)
    averages = {decay: weights.clone() for decay in DECAYS}
    rates = torch.tensor([trial.learning_rate for trial in trials])[:, None, None]
    scales = torch.tensor([trial.clipping.sensitivity for trial in trials])[:, None, None]
    lengths = (task.x.square().sum(1) + 1).sqrt()
    for step in range(plan.steps):
        drawn = (torch.rand(records, generator=generator) < plan.sampling_rate).nonzero()[:, 0]
        x = task.x[drawn]
        error = torch.softmax(_outputs(x, weights), 2)  # [R, K, classes]
        error[torch.arange(len(drawn)), :, task.y[drawn]] -= 1
        norms = error.norm(dim=2) * lengths[drawn, None]
        for place, trial in enumerate(trials):
            error[:, place] *= trial.clipping.factors(norms[:, place])[:, None]
        flat = error.flatten(1)
        total = torch.cat([flat.t() @ x, flat.sum(0)[:, None]], 1).view_as(weights)
        noise = torch.randn(weights.shape, generator=generator)
        total += noise * scales * plan.noise_multiplier
        speed.mul_(MOMENTUM).add_(total, alpha=1 / BATCH)
        weights -= rates * speed
        for decay, average in averages.items():
            kept = min(decay, (1 + step) / (10 + step))
            average.mul_(kept).add_(weights, alpha=1 - kept)
    return averages


def search(name: str, features: str, count: int) -> Iterator[dict[str, Any]]:
    """Every trial of every method and epsilon, one row for each decay of its average."""
    trials = [Trial.drawn(method, number) for method in METHODS for number in range(count)]
    task = Task.load(name, features)
    for epsilon in EPSILONS.get(name, tuple(EPOCHS)):
        start = time.perf_counter()
        for decay, weights in trained(task, epsilon, trials).items():
            for trial, accuracy in zip(trials, task.accuracy(weights), strict=True):
                yield {
                    "task": name,
                    "epsilon": epsilon,
                    "features": features,
                    **asdict(trial),
                    "learning_rate": float(f"{trial.learning_rate:.3g}"),
                    "averaging": decay,
                    "accuracy": round(accuracy, 2),
                }
        print(f"{name} {features} epsilon {epsilon:g}: {time.perf_counter() - start:.0f} s")


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best row of every cell."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        cell = tuple(row[key] for key in ("task", "epsilon", "features", "method"))
        if cell not in found or row["accuracy"] > found[cell]["accuracy"]:
            found[cell] = row
    return list(found.values())


def _outputs(x: Tensor, weights: Tensor) -> Tensor:
    """`[R, d]` and `[K, classes, d + 1]` to `[R, K, classes]`."""
    flat = weights.flatten(0, 1)
    return (x @ flat[:, :-1].t() + flat[:, -1]).view(len(x), *weights.shape[:2])


def _log(draw: random.Random, low: float, high: float) -> float:
    return float(f"{math.exp(draw.uniform(math.log(low), math.log(high))):.3g}")


def main() -> None:
    """Searches, keeps every row, prints the best of each cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=["mnist", "fashion-mnist", "cifar10"])
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=FEATURES)
    parser.add_argument("--trials", type=int, default=4)
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for name, features in itertools.product(options.tasks, options.features):
        rows = [row for row in rows if (row["task"], row["features"]) != (name, features)]
        for row in search(name, features, options.trials):
            rows.append(row)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    for row in best([row for row in rows if row["task"] in options.tasks]):
        print(row)


if __name__ == "__main__":
    main()
