"""What keeping records apart costs: a capture beside the same passes over the whole batch.

`python -m benchmarks.isolation` times, in turn and in one process, for each network:

- *plain*: one forward and one backward pass over the whole batch, in which only what flows back
  between layers is computed (no gradient of a weight): what any capture has to do at least;
- *run*: a capture as a run makes it: for one record under `torch.vmap`, recorded and run again
  without its Python where model and loss are torch's own modules;
- *vmap*: the same, never recorded (the first, checked, one is not timed);
- *loop*: one record after the other, on a few records, scaled up to the batch.

Reported are medians over rounds. Targets, for captures of a run: at most 1.1 of plain on the
benchmark's networks, and at most 0.5 ms more on the smallest, a table's MLP.

Last comes a whole private step of that MLP beside its gradient work (capture, norms, clipped sum):
the rest is fetching, noise, bookkeeping and the optimizer. Calls of Python functions are counted
too, which other processes do not disturb.
"""

from __future__ import annotations

import cProfile
import itertools
import pstats
import statistics
import sys
import time
from collections.abc import Callable

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)
from torch import Tensor, nn  # noqa: E402

import plumbline as pl  # noqa: E402
from benchmarks.models import WORKLOADS, Workload  # noqa: E402
from plumbline.gradients import capture  # noqa: E402
from plumbline.gradients.programs import Programs  # noqa: E402

ROUNDS, WARM_UP, FEW = 21, 9, 4
TARGET, MORE = 1.1, 0.5e-3


def table_mlp() -> nn.Module:
    """30-64-64-2 with ReLU."""
    return nn.Sequential(
        nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def table(size: int, generator: torch.Generator) -> Tensor:
    """Rows of a table, `[B, 30]`."""
    return torch.randn(size, 30, generator=generator)


LOSS = nn.CrossEntropyLoss(reduction="none")


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss per record."""
    losses: Tensor = LOSS(model(batch[0]), batch[1])
    return losses


class Contest:
    """One network and a batch."""

    def __init__(self, workload: Workload) -> None:
        self.model = workload.model()
        self.batch = workload.batch()
        self.programs = Programs(self.model, LOSS)
        x, y = self.batch
        self.batches = itertools.cycle([self.batch, (x[1:].clone(), y[1:].clone())])
        self.first = next(m for m in self.model.modules() if list(m.parameters(recurse=False)))

    def plain(self) -> None:
        """Forward and backward over the whole batch, without gradients of weights."""
        begins: list[Tensor] = []

        def begin(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            begins.append(output.detach().requires_grad_())
            return begins[-1]

        handle = self.first.register_forward_hook(begin)
        self.model.requires_grad_(False)
        try:
            torch.autograd.grad(cross_entropy(self.model, self.batch).sum(), begins)
        finally:
            self.model.requires_grad_(True)
            handle.remove()

    def vmap(self) -> None:
        """One capture."""
        capture(self.model, cross_entropy, self.batch)

    def run(self) -> None:
        """The capture of a run, in which batches differ in size."""
        batch = next(self.batches)
        self.programs.run(
            lambda: capture(self.model, cross_entropy, batch),
            cross_entropy, batch, None, len(batch[1]),
        )  # fmt: skip

    def loop(self) -> None:
        """A few records, one after the other."""
        few = self.batch[0][:FEW], self.batch[1][:FEW]
        capture(self.model, cross_entropy, few, isolation="loop")


def whole_step(workload: Workload, records: int = 20_000) -> None:
    """Prints what a private step takes beside its gradient work."""
    contest, model = Contest(workload), workload.model()
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        workload.batch(records),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(clip=1.0),
        budget=pl.Budget(
            noise_multiplier=1.0, delta=1e-6, steps=1000, expected_batch_size=workload.batch_size
        ),
    )
    batches = iter(private)

    def gradient_work() -> None:
        batch = contest.batch
        gradients = contest.programs.run(
            lambda: capture(contest.model, cross_entropy, batch),
            cross_entropy, batch, None, len(batch[1]),
        )  # fmt: skip
        gradients.total((1 / gradients.norms()).clamp(max=1.0))

    def step() -> None:
        private.step(next(batches))

    for name, work in (("gradient work", gradient_work), ("private step", step)):
        times = [seconds(work) for _ in range(10 * ROUNDS)][ROUNDS:]
        profile = cProfile.Profile()
        profile.runcall(lambda work=work: [work() for _ in range(ROUNDS)])
        calls = pstats.Stats(profile).total_calls / ROUNDS  # type: ignore[attr-defined]
        print(f"{name:14} {1e3 * statistics.median(times):9.2f} ms, {calls:.0f} calls in Python")


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    """Prints a line a network; fails if one is beyond its target."""
    workloads = [Workload("table", "table MLP", table_mlp, 512, table, 2), *WORKLOADS.values()]
    beyond = []
    print(f"{'network':14} {'plain, ms':>9} {'run':>6} {'vmap':>6} {'loop':>6}   times plain")
    for workload in workloads:
        contest = Contest(workload)
        ways = {
            "plain": contest.plain, "run": contest.run, "vmap": contest.vmap, "loop": contest.loop,
        }  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(WARM_UP + ROUNDS):
            for name, way in ways.items():
                took = seconds(way)
                if number >= WARM_UP:
                    times[name].append(took)
        plain, run, vmap, loop = (statistics.median(own) for own in times.values())
        loop *= len(contest.batch[1]) / FEW
        print(
            f"{workload.title:14} {1e3 * plain:9.2f} {run / plain:6.2f} {vmap / plain:6.2f} "
            f"{loop / plain:6.0f}   ({1e3 * (run - plain):+.2f} ms)"
        )
        if run > TARGET * plain and run > plain + MORE:
            beyond.append(workload.title)
    whole_step(workloads[0])
    if beyond:
        print("beyond the target:", ", ".join(beyond))
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
