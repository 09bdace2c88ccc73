"""What private training adds to the gradient: sampling, noise, ledger and accounting together.

`python -m benchmarks.overhead` races `private.step` on the benchmark's MLP, drawing Poisson batches
of 1,024 expected records out of 60,000, against a step that does the same gradient work on one
fixed batch and nothing else (capture, norms, clipped sum, optimizer). Both private runs have a
ledger on the disk and ask for epsilon after every step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)

import plumbline as pl  # noqa: E402
from benchmarks.contestants import Settings  # noqa: E402
from benchmarks.contestants.ours import DPSGD  # noqa: E402
from benchmarks.models import WORKLOADS  # noqa: E402
from benchmarks.timing import Pace, Race, Spread  # noqa: E402

RECORDS, STEPS = 60_000, 100_000
TARGETS = {"secure": 0.30, "seeded": 0.10}


class Core(DPSGD):
    """The gradient work of a private step, without sampling, noise, ledger or accounting."""

    def step(self) -> None:
        """Capture, norms, clipped sum, optimizer."""
        gradients = self.captured()
        clipped = gradients.sum((self.settings.clip / gradients.norms()).clamp(max=1.0))
        for name, parameter in self.named.items():
            parameter.grad = clipped[name].div_(len(self.y))
        self.optimizer.step()


class Accounted:
    """Private training of the same network, a step at a time."""

    def __init__(self, ledger: pl.Ledger, seed: int | None) -> None:
        workload = WORKLOADS["mlp"]
        model = workload.model()
        self.private = pl.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=Settings().learning_rate),
            workload.batch(RECORDS),
            loss=torch.nn.CrossEntropyLoss(reduction="none"),
            method=pl.methods.dpsgd(clip=Settings().clip),
            budget=pl.Budget(
                noise_multiplier=1.0,
                delta=1e-6,
                steps=STEPS,
                expected_batch_size=workload.batch_size,
            ),
            seed=seed,
            ledger=ledger,
        )
        self.batches = iter(self.private)

    def step(self) -> None:
        """Draw, step, and look at epsilon."""
        self.private.step(next(self.batches))
        self.private.epsilon()


@contextmanager
def contestants() -> Iterator[dict[str, Accounted]]:
    """A secure and a seeded run, each on a ledger of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {name: pl.Ledger.open(Path(folder) / name) for name in TARGETS}
        runs = {
            "secure": Accounted(ledgers["secure"], None),
            "seeded": Accounted(ledgers["seeded"], 1),
        }
        yield runs
        for run in runs.values():
            run.private.close()
        for ledger in ledgers.values():
            ledger.close()


def main() -> None:
    """Race, print, write down."""
    core = Core(WORKLOADS["mlp"], Settings())
    with contestants() as runs:
        race = Race(core.step, {name: run.step for name, run in runs.items()}, Pace(rounds=9))
        for number in range(9):
            race.round(number)
    print(machine.sentence(machine.describe()))
    found = {}
    for name, times in race.times.items():
        spread = Spread.of(times.ratios)
        found[name] = spread.median - 1
        print(
            f"{name}: sampling, noise, ledger and accounting add {spread.median - 1:.0%} "
            f"({spread.low - 1:.0%} to {spread.high - 1:.0%}) to a step; mark {TARGETS[name]:.0%}"
        )
    out = Path(__file__).parent / "results"
    out.mkdir(exist_ok=True)
    (out / "overhead.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
