"""What private training adds to the gradient: sampling, noise, ledger and accounting together.

`python -m benchmarks.overhead` races `private.step` on the benchmark's MLP, drawing Poisson batches
of 1,024 expected records out of 60,000, against a step that does the same gradient work on one
fixed batch and nothing else (capture, norms, clipped sum, optimizer). Both private runs have a
ledger on the disk and ask for epsilon after every step.

Then Python and bookkeeping alone: a private step of a table's MLP on two records, less its
engine (capture, norms, clipped sum), its noise and its optimizer, each timed beside it. Mark:
0.5 ms.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)

import plumbline as pl  # noqa: E402
from benchmarks.contestants import Settings  # noqa: E402
from benchmarks.contestants.ours import DPSGD  # noqa: E402
from benchmarks.loop_models import LOOPS  # noqa: E402
from benchmarks.models import WORKLOADS  # noqa: E402
from benchmarks.timing import Pace, Race, Spread  # noqa: E402
from plumbline.gradients import capture  # noqa: E402
from plumbline.gradients.programs import Programs  # noqa: E402
from plumbline.mechanism.noise import add_noise  # noqa: E402
from plumbline.mechanism.random_source import SecureSource  # noqa: E402

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


def bookkeeping(rounds: int = 3000) -> float:
    """Seconds of a private step on two records beyond its engine, noise and optimizer."""
    workload = LOOPS["table"]
    x, _ = workload.batch()
    pair = x[:1].repeat(2, 1), torch.tensor([0, 1])  # a record alone would be run twice
    model, source = workload.model(), SecureSource()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        private = pl.make_private(
            model,
            optimizer,
            pair,
            loss=torch.nn.CrossEntropyLoss(reduction="none"),
            method=pl.methods.dpsgd(clip=1.0),
            budget=pl.Budget(noise_multiplier=1.0, delta=1e-6, steps=STEPS, expected_batch_size=2),
            ledger=pl.Ledger.open(Path(folder) / "ledger", reserve=50),
        )
        batches = iter(private)
        programs = Programs(model, torch.nn.CrossEntropyLoss(reduction="none"))
        beside, step = [], []
        for number in range(rounds):
            step.append(_seconds(lambda: private.step(next(batches))))

            def work(number: int = number) -> None:
                gradients = programs.run(
                    lambda: capture(model, DPSGD.losses, pair), DPSGD.losses, pair, None, 2
                )
                total = gradients.total((1 / gradients.norms()).clamp(max=1.0))
                noisy = add_noise(total, 1.0, source.once("noise", number))
                for name, parameter in model.named_parameters():
                    parameter.grad = noisy[name].float()
                optimizer.step()
                optimizer.zero_grad()

            beside.append(_seconds(work))
        private.close()
    late = slice(rounds * 2 // 3, None)  # the noise's loops are compiled by then
    return statistics.median(step[late]) - statistics.median(beside[late])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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
    found["bookkeeping, ms"] = 1e3 * bookkeeping()
    print(f"Python and bookkeeping of a step: {found['bookkeeping, ms']:.2f} ms; mark 0.5 ms")
    out = Path(__file__).parent / "results"
    out.mkdir(exist_ok=True)
    (out / "overhead.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
