"""How the records' settings were found: equal tuning over methods x features x epsilon.

`python -m benchmarks.record_search mnist fashion-mnist cifar10 imdb` gives every way of clipping,
on every kind of features (images: pixels, scattering, and scattering less a mean that is released
privately; texts: words hashed into few or many bins) and at every epsilon, the same number of
trials, drawn alike, and judges them by 5,000 training records that are held out. The models are
linear, so that a record's gradient is `(p - y) x^T` in closed form, and all trials of an epsilon
are trained at once on the same batches, each with its own noise; the factors are those of
`plumbline.clipping`, the noise multiplier that of `plumbline.mechanism`. Every trial is kept in
benchmarks/results/record_search.json; what is found goes into recipes/records, and only the runs of
those recipes are reported. Epsilon covers none of the search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.record_tasks import METHODS, TASKS, Records, Task, Trial
from plumbline import Budget

RESULTS = Path(__file__).parent / "results" / "record_search.json"
DELTA, MOMENTUM = 1e-5, 0.9


@torch.no_grad()
def trained(
    task: Task, records: Records, epsilon: float, trials: list[Trial]
) -> dict[float, Tensor]:
    """The averaged weights of each trial, `[K, outputs, d + 1]`, by the average's decay."""
    count, width = records.x.shape
    plan = Budget(
        epsilon=epsilon,
        delta=DELTA,
        epochs=task.epochs[epsilon],
        expected_batch_size=task.batch,
    ).resolve(count, before=records.before)
    generator = torch.Generator().manual_seed(0)
    weights = torch.zeros(len(trials), task.outputs, width + 1)
    if task.bias:
        weights.uniform_(-1 / math.sqrt(width), 1 / math.sqrt(width), generator=generator)
    speed = torch.zeros_like(weights)
    averages = {decay: weights.clone() for decay in task.decays}
    rates = torch.tensor([trial.learning_rate for trial in trials])[:, None, None]
    scales = torch.tensor([trial.clipping.sensitivity for trial in trials])[:, None, None]
    lengths = (records.x.square().sum(1) + task.bias).sqrt()
    for step in range(plan.steps):
        drawn = (torch.rand(count, generator=generator) < plan.sampling_rate).nonzero()[:, 0]
        x = records.x[drawn]
        error = _errors(_outputs(x, weights), records.y[drawn])
        norms = error.norm(dim=2) * lengths[drawn, None]
        for place, trial in enumerate(trials):
            error[:, place] *= trial.clipping.factors(norms[:, place])[:, None]
        flat = error.flatten(1)
        total = torch.cat([flat.t() @ x, flat.sum(0)[:, None]], 1).view_as(weights)
        noise = torch.randn(weights.shape, generator=generator)
        total += noise * scales * plan.noise_multiplier
        if not task.bias:
            total[..., -1] = 0
        speed.mul_(MOMENTUM).add_(total, alpha=1 / task.batch)
        weights -= rates * speed
        for decay, average in averages.items():
            kept = min(decay, (1 + step) / (10 + step))
            average.mul_(kept).add_(weights, alpha=1 - kept)
    return averages


def search(name: str, features: str, count: int) -> Iterator[dict[str, Any]]:
    """Every trial of every method and epsilon, one row for each decay of its average."""
    task = TASKS[name]
    records = task.features[features]()
    trials = [
        Trial.drawn(method, number, task.ranges, records.length)
        for method, number in itertools.product(METHODS, range(count))
    ]
    for epsilon in task.epochs:
        start = time.perf_counter()
        for decay, weights in trained(task, records, epsilon, trials).items():
            for trial, accuracy in zip(trials, _accuracy(records, weights), strict=True):
                yield {
                    "task": name,
                    "epsilon": epsilon,
                    "features": features,
                    **asdict(trial),
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
    """`[R, d]` and `[K, outputs, d + 1]` to `[R, K, outputs]`."""
    flat = weights.flatten(0, 1)
    return (x @ flat[:, :-1].t() + flat[:, -1]).view(len(x), *weights.shape[:2])


def _errors(outputs: Tensor, y: Tensor) -> Tensor:
    """The loss's gradients at the outputs, `[R, K, outputs]`."""
    if outputs.shape[2] == 1:
        return torch.sigmoid(outputs) - y[:, None, None]
    error = torch.softmax(outputs, 2)
    error[torch.arange(len(y)), :, y] -= 1
    return error


def _accuracy(records: Records, weights: Tensor) -> list[float]:
    """Of models `[K, outputs, d + 1]`, on the records that judge, in percent."""
    outputs = _outputs(records.judged_x, weights)
    said = outputs[..., 0] > 0 if outputs.shape[2] == 1 else outputs.argmax(2)
    right = said == records.judged_y[:, None]
    return [100 * float(share) for share in right.float().mean(0)]


def main() -> None:
    """Searches, keeps every row, prints the best of each cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=list(TASKS))
    kinds = sorted({kind for task in TASKS.values() for kind in task.features})
    parser.add_argument("--features", nargs="+", choices=kinds, help="all of a task's by default")
    parser.add_argument("--trials", type=int, default=4)
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for name in options.tasks:
        for features in TASKS[name].features:
            if features not in (options.features or kinds):
                continue
            rows = [row for row in rows if (row["task"], row["features"]) != (name, features)]
            for row in search(name, features, options.trials):
                rows.append(row)
                RESULTS.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    for row in best([row for row in rows if row["task"] in options.tasks]):
        print(row)


if __name__ == "__main__":
    main()
