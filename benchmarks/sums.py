"""What bounded rounding costs: sums of gradients beside plain float32 sums.

`python -m benchmarks.sums` takes the gradients of a batch (capture, norms) and adds them up, once
as a private step does (in float64, and in float32 within buckets: `gradients/summation.py`), once
in float64 alone, as a step in several chunks does, and once as one float32 product. They are timed
in turn; reported are medians of the ratios to the last, of the sum alone, of all gradient work
(capture, norms, sum), and of that with the step's noise. Targets, for the last: 1.15 on a wide MLP,
1.05 on the other networks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import singledispatch

from benchmarks import machine

machine.pin()

import torch  # noqa: E402  (after the cores are chosen)
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from benchmarks.models import WORKLOADS, Workload  # noqa: E402
from plumbline.gradients import PerSampleGradients, capture  # noqa: E402
from plumbline.gradients.layers.blocks import Stacked  # noqa: E402
from plumbline.gradients.layers.convolution import Convolved  # noqa: E402
from plumbline.gradients.layers.embedding import EmbeddingRows  # noqa: E402
from plumbline.gradients.outer import Outer  # noqa: E402
from plumbline.gradients.summation import TOGETHER  # noqa: E402
from plumbline.gradients.terms import Dense, Term, rows_like  # noqa: E402
from plumbline.mechanism.noise import add_noise  # noqa: E402
from plumbline.mechanism.random_source import SeededSource  # noqa: E402

ROUNDS, WARM_UP = 25, 5
TARGETS = {"wide MLP": 1.15}
TARGET = 1.05


def wide_mlp() -> nn.Module:
    """784-1024-1024-10 with ReLU."""
    layers = nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    return nn.Sequential(*layers)


def images(size: int, generator: torch.Generator) -> Tensor:
    """Flat images `[B, 784]`."""
    return torch.randn(size, 784, generator=generator)


@singledispatch
def plain(term: Term, weights: Tensor) -> Tensor:
    """`sum_i weights_i g_i` in float32, as one product."""
    return term.weighted_sum(weights)


@plain.register
def _(term: Dense, weights: Tensor) -> Tensor:
    return (weights @ term.values.flatten(1)).view(term.shape)


@plain.register
def _(term: Outer, weights: Tensor) -> Tensor:
    left, right = term.left, term.right
    if left.shape[2] <= right.shape[2]:
        left = left * rows_like(weights, left)
    else:
        right = right * rows_like(weights, right)
    return left.flatten(0, 1).T @ right.flatten(0, 1)


@plain.register
def _(term: Convolved, weights: Tensor) -> Tensor:
    back = term.back * rows_like(weights, term.back)
    shape = term.inputs.new_empty(1).expand(term.shape)
    return term.geometry.weight_gradient(back, term.inputs, shape, term.geometry.groups)


@plain.register
def _(term: EmbeddingRows, weights: Tensor) -> Tensor:
    back = term.back * rows_like(weights, term.back)
    return torch.ops.aten.embedding_dense_backward(back, term.index, term.shape[0], -1, False)


@plain.register
def _(term: Stacked, weights: Tensor) -> Tensor:
    total = torch.zeros(term.shape)
    for (first, last), block in term.blocks.items():
        total[first:last] = plain(block, weights)
    return total


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One loss per record."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Contest:
    """One network: its gradients, and the two ways to add them up."""

    def __init__(self, workload: Workload) -> None:
        self.model = workload.model()
        self.x, self.y = workload.batch()

    def gradients(self) -> PerSampleGradients:
        """The batch's gradients, with their norms."""
        gradients = capture(self.model, cross_entropy, (self.x, self.y))
        gradients.norms()
        return gradients

    def noise(self) -> object:
        """The noise of a step, drawn and added."""
        value = {name: p.detach() for name, p in self.model.named_parameters()}
        return add_noise(value, 1.0, SeededSource(0).stream("noise"))

    def old(self, gradients: PerSampleGradients) -> object:
        """Float32, in one product a parameter."""
        weights = gradients.norms().clamp(min=1).reciprocal()
        with torch.no_grad():
            return {name: plain(gradients.term(name), weights) for name in gradients.names}

    def new(self, gradients: PerSampleGradients) -> object:
        """As it is released."""
        buckets = torch.arange(gradients.records) // TOGETHER
        return gradients.to_release(buckets).total(gradients.norms().clamp(min=1).reciprocal())

    def double(self, gradients: PerSampleGradients) -> object:
        """All in float64."""
        return gradients.total(gradients.norms().clamp(min=1).reciprocal())


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured(contest: Contest) -> tuple[float, ...]:
    """The ratios to old: of float64 sums, of new ones, with all work, and with noise; medians."""
    doubles, sums, works, steps = [], [], [], []
    for number in range(WARM_UP + ROUNDS):
        ways = [contest.old, contest.double, contest.new]
        ways = ways if number % 2 else ways[::-1]
        taken, added = {}, {}
        for way in ways:
            start = time.perf_counter()
            gradients = contest.gradients()
            taken[way] = time.perf_counter() - start
            added[way] = seconds(lambda way=way, own=gradients: way(own))
        if number >= WARM_UP:
            doubles.append(added[contest.double] / added[contest.old])
            sums.append(added[contest.new] / added[contest.old])
            # Both sides with the same gradient work: its own noise would hide the difference.
            work = statistics.mean(taken.values())
            works.append((work + added[contest.new]) / (work + added[contest.old]))
            work += seconds(contest.noise)
            steps.append((work + added[contest.new]) / (work + added[contest.old]))
    return tuple(map(statistics.median, (doubles, sums, works, steps)))


def main() -> None:
    """Prints a line a network, and which are beyond their targets."""
    workloads = [Workload("wide", "wide MLP", wide_mlp, 512, images, 10), *WORKLOADS.values()]
    slow = []
    heads = "float64", "sum", "work", "step", "target"
    print(f"{'network':12}" + "".join(f"{head:>8}" for head in heads) + "   / float32")
    for workload in workloads:
        ratios = measured(Contest(workload))
        target = TARGETS.get(workload.title, TARGET)
        print(f"{workload.title:12}" + "".join(f"{ratio:8.3f}" for ratio in (*ratios, target)))
        if ratios[-1] > target:
            slow.append(workload.title)
    if slow:
        print("beyond the target:", ", ".join(slow))


if __name__ == "__main__":
    main()
