"""The contract of every method: one record moves what is asked by at most what was declared.

A data set of six adversarial records has 64 batches that Poisson sampling can draw. A method takes
its step on every one of them, from the same state and with the same answers (answers are public:
privacy is about what else differs). Then every two batches that differ by one record, added or
replaced, are compared, question by question:

- the questions are the same: their number, names, sensitivities and noise multipliers;
- each value moves by at most the question's sensitivity (by twice that for a replaced record);
- whatever is not asked is the same to the last bit: the update, the method's public state and the
  weights. Were one of these to depend on the records, it would leave without noise.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from plumbline.gradients import KERNELS
from plumbline.methods import Method
from plumbline.training.batches import PrivateBatch
from plumbline.training.losses import per_record

SLACK = 1e-5
"""Relative: float32 rounds every clipped gradient, and their sum."""

TOKENS, WIDTH = 6, 3
RECORDS = 6
DATASETS = 11
BATCHES = list(itertools.product((False, True), repeat=RECORDS))
WARM = 2
"""Steps before the one that is compared, so that what a method carries is not as at the start."""

Make = Callable[[], Method]


class Broken(AssertionError):
    """The contract does not hold."""


class Network(nn.Module):
    """Tokens through a layer, pooled with alternating signs, and classified.

    The signs let a record with nearly equal tokens have a gradient that cancels. There is no
    saturation and no last bias: the gradient grows and shrinks with the record.
    """

    signs: Tensor

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4)
        self.norm = nn.BatchNorm1d(4) if batch_norm else nn.Identity()
        self.outer = nn.Linear(4, 2, bias=False)
        self.register_buffer("signs", torch.tensor([1.0, -1.0]).repeat(TOKENS // 2)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.leaky_relu(self.inner(x), 0.1)
        return self.outer(self.norm((hidden * self.signs).sum(1)))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Adversarial records: inputs ``[6, TOKENS, WIDTH]``, labels ``[6]`` and groups ``[6]``."""

    x: Tensor
    y: Tensor
    groups: Tensor
    kinds: tuple[str, ...]


def cancelling(left: float, scale: float, draw: torch.Generator) -> Tensor:
    """Tokens that are nearly equal: their gradients cancel but for about ``left`` of them."""
    token = 1 + torch.rand(1, WIDTH, generator=draw)
    return scale * token * (1 + left * torch.randn(TOKENS, WIDTH, generator=draw))


KINDS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "ordinary": lambda x, draw: x,
    "random": lambda x, draw: 10.0 ** float(6 * torch.rand((), generator=draw) - 3) * x,
    "scaled by 1e6": lambda x, draw: 1e6 * x,
    "scaled by 1e15": lambda x, draw: 1e15 * x,
    "scaled by 1e30": lambda x, draw: 1e30 * x,
    "tiny": lambda x, draw: 1e-30 * x,
    "zero": lambda x, draw: torch.zeros_like(x),
    "NaN": lambda x, draw: torch.full_like(x, math.nan),
    "one NaN": lambda x, draw: torch.cat([torch.full_like(x[:1], math.nan), x[1:]]),
    "infinite": lambda x, draw: torch.full_like(x, math.inf),
    "duplicate": lambda x, draw: x,
    "opposite": lambda x, draw: x,
    "negated": lambda x, draw: -1e3 * x,
    "cancelling": lambda x, draw: cancelling(1e-4, 1.0, draw),
    "cancelling, large": lambda x, draw: cancelling(1e-6, 1e6, draw),
    "cancelling to nothing": lambda x, draw: cancelling(1e-7, 1e6, draw),
}
"""What is made of a record of ordinary size, or of another of the data set."""

COPIES = ("duplicate", "opposite", "negated")
"""Those made of another; the opposite has the other label: its gradient points the other way."""


@lru_cache
def datasets(count: int) -> tuple[Dataset, ...]:
    """Data sets whose records are of all kinds in turn, shuffled."""
    draw = torch.Generator().manual_seed(0)
    kinds: list[str] = []
    while len(kinds) < count * RECORDS:
        kinds += [list(KINDS)[place] for place in torch.randperm(len(KINDS), generator=draw)]
    return tuple(_dataset(kinds[n * RECORDS : (n + 1) * RECORDS], draw) for n in range(count))


def _dataset(kinds: list[str], draw: torch.Generator) -> Dataset:
    x = torch.randn(RECORDS, TOKENS, WIDTH, generator=draw)
    y, groups = (torch.randint(2, (RECORDS,), generator=draw) for _ in range(2))
    # Copies come last, when what they copy is there.
    for place in sorted(range(RECORDS), key=lambda place: kinds[place] in COPIES):
        source = place
        if kinds[place] in COPIES:
            source = int(torch.randint(RECORDS, (), generator=draw))
            y[place] = 1 - y[source] if kinds[place] == "opposite" else y[source]
        x[place] = KINDS[kinds[place]](x[source], draw)
    return Dataset(x, y, groups, tuple(kinds))


@dataclass
class World:
    """What a batch needs of its owner; the records' numbers are their places in the data set."""

    data: Dataset
    model: nn.Module
    sampling_rate: float = 0.1
    max_physical_batch: int | None = None
    loss: Any = per_record(nn.CrossEntropyLoss(reduction="none"))

    @property
    def plan(self) -> Any:
        return SimpleNamespace(
            noise_multiplier=1.0, expected_batch_size=8, sampling_rate=self.sampling_rate
        )

    @property
    def sensitive_features(self) -> Tensor:
        return self.data.groups

    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def fetch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.data.x[indices], self.data.y[indices]

    def draws_key(self, step: int) -> str:
        return f"step {step}"


@dataclass
class Release:
    """What a step asked, ``(name, sensitivity, sigma)`` and value, and what it left without noise."""

    asked: list[tuple[str, float, float]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)


Answers = Callable[[int, dict[str, Tensor], float], dict[str, Tensor]]


def step(world: World, method: Method, number: int, batch: Tensor, answers: Answers) -> Release:
    """A step of a method on some of the records, with the given answers."""
    seen = Release()
    # Who keeps something of every record counts them through; else records have their numbers.
    units = torch.arange(len(batch)) if _keeps_records(method) else batch
    program = method.step(PrivateBatch(number, batch, units, world))
    try:
        query = next(program)
        while True:
            value = {"value": query.value} if isinstance(query.value, Tensor) else query.value
            seen.asked.append((query.name, query.sensitivity, query.sigma))
            seen.values.append(_flat(dict(value)))
            std = query.sigma * query.sensitivity if query.sigma else 1.0
            query = program.send(answers(len(seen.values) - 1, dict(value), std))
    except StopIteration as end:
        seen.left = [end.value, method.state_dict(), world.parameters()]
    return seen


@dataclass
class Noisy:
    """Noisy answers, some of them far off; kept, to be given again."""

    draw: torch.Generator
    given: list[dict[str, Tensor]] = field(default_factory=list)

    def __call__(self, place: int, value: dict[str, Tensor], std: float) -> dict[str, Tensor]:
        if torch.rand((), generator=self.draw) < 0.25:
            std *= 100
        noisy = {
            name: torch.nan_to_num(one) + std * torch.randn(one.shape, generator=self.draw)
            for name, one in value.items()
        }
        self.given.append(noisy)
        return {name: one.clone() for name, one in noisy.items()}


@dataclass
class Checked:
    """How much was compared, and how far each question's value moved, relative to its bound."""

    neighbours: int = 0
    replaced: int = 0
    farthest: dict[str, float] = field(default_factory=dict)


def check(
    make: Make,
    *,
    batch_norm: bool = False,
    sampling_rate: float = 0.1,
    chunk: int | None = None,
    count: int = DATASETS,
) -> Checked:
    """Checks the contract on every data set; raises ``Broken`` where it does not hold."""
    checked = Checked()
    for number, data in enumerate(datasets(count)):
        torch.manual_seed(number)
        world = World(data, Network(batch_norm), sampling_rate, chunk)
        _confirm(world, make())
        # Gram norms are where sums cancel; the usual way has its turn too.
        with preferring("gram" if number % 2 == 0 else None):
            method = make()
            declared = [(query.name, query.noise_multiplier) for query in method.queries(1.0)]
            for releases in _every_batch(world, method, number):
                _compare(releases, declared, checked, data)
    return checked


def _confirm(world: World, method: Method) -> None:
    """The first capture of a model is compared with autograd: on ordinary records, as in training.

    (Where gradients cancel, two ways to sum them up differ, and the comparison would be refused.)
    """
    ordinary = replace(world.data, x=torch.randn(world.data.x.shape))
    batch = torch.arange(RECORDS - 1)
    step(replace(world, data=ordinary), method, 0, batch, Noisy(torch.Generator()))


def _every_batch(world: World, method: Method, seed: int) -> Iterator[list[Release]]:
    """The releases of all batches, for each step that is compared."""
    draw = torch.Generator().manual_seed(seed)
    starts, answers = [], []
    everyone = torch.arange(RECORDS)
    for number in range(WARM + 1):
        starts.append((copy.deepcopy(method), _weights(world)))
        noisy = Noisy(draw)
        update = step(world, method, number, everyone, noisy).left[0]
        with torch.no_grad():
            for name, parameter in world.parameters().items():
                parameter -= 0.1 * update[name].clamp(-1, 1)
        answers.append(noisy.given)
    # What is kept of records differs between data sets: they go all the way from the start.
    first = 0 if _keeps_records(method) else WARM
    seen: list[list[Release]] = [[] for _ in starts]
    for batch in BATCHES:
        method = copy.deepcopy(starts[first][0])
        for number in range(first, WARM + 1):
            _set_weights(world, starts[number][1])
            again = answers[number]
            release = step(
                world,
                method,
                number,
                torch.tensor(batch).nonzero()[:, 0],
                lambda place, *_, again=again: {k: v.clone() for k, v in again[place].items()},
            )
            release.left[2] = _weights(world)
            seen[number].append(release)
    yield from seen[first:]


@lru_cache
def _pairs() -> tuple[Tensor, Tensor]:
    """Batches, by number, that differ by one record: added, and replaced."""
    bits = torch.tensor(BATCHES, dtype=torch.long)
    apart = (bits[:, None] != bits[None]).sum(2)
    size = bits.sum(1)
    order = torch.triu(torch.ones_like(apart), 1).bool()
    added = (apart == 1) & order
    replaced = (apart == 2) & (size[:, None] == size[None]) & order
    return added.nonzero().T, replaced.nonzero().T


def _compare(
    releases: list[Release], declared: list[tuple[str, float]], checked: Checked, data: Dataset
) -> None:
    first = releases[0]
    if [(name, sigma) for name, _, sigma in first.asked] != declared:
        raise Broken(f"{first.asked} is asked, but {declared} is declared and charged")
    for batch, release in zip(BATCHES, releases, strict=True):
        what = f"the batch {[k for k, there in zip(data.kinds, batch, strict=True) if there]}"
        if release.asked != first.asked:
            raise Broken(f"{what} is asked {release.asked}, an empty one {first.asked}")
        for place, name in enumerate(("update", "state", "weights")):
            if not _equal(release.left[place], first.left[place]):
                raise Broken(f"{what} changes the {name}, which is not asked for")
    added, replaced = _pairs()
    for place, (name, sensitivity, _) in enumerate(first.asked):
        values = torch.stack([release.values[place] for release in releases])
        if not bool(torch.isfinite(values).all()):
            raise Broken(f"'{name}' is not finite for some of {data.kinds}")
        # A replaced record changes two counts by one each, where it moves a sum twice.
        twice = math.sqrt(2) if "gradient" not in name else 2.0
        for pairs, bound in ((added, sensitivity), (replaced, twice * sensitivity)):
            gaps = (values[pairs[0]] - values[pairs[1]]).norm(dim=1)
            worst = int(gaps.argmax())
            if float(gaps[worst]) > bound * (1 + SLACK):
                one, other = (BATCHES[int(pairs[side, worst])] for side in (0, 1))
                raise Broken(
                    f"'{name}' moves by {float(gaps[worst]):.6g}, bound {bound:.6g}, between "
                    f"{one} and {other} of {data.kinds}"
                )
            if pairs is added:
                part = float(gaps[worst]) / bound
                checked.farthest[name] = max(checked.farthest.get(name, 0.0), part)
    checked.neighbours += added.shape[1]
    checked.replaced += replaced.shape[1]


@contextmanager
def preferring(name: str | None) -> Iterator[None]:
    """Layers that offer the kernel use it; others their first one. Nothing is measured."""
    KERNELS.forget()
    usual = KERNELS.run

    def run(key: Any, candidates: Any, *rest: Any, **named: Any) -> Any:
        return candidates[name]() if name in candidates else usual(key, candidates, *rest, **named)

    KERNELS.measure = False
    with mock.patch.object(KERNELS, "run", run):
        yield
    KERNELS.forget()


def _keeps_records(method: Method) -> bool:
    return any(hasattr(rule, "private_state_dict") for rule in method.evaluation)


def _flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.detach().double().flatten() for value in values.values()])


def _weights(world: World) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in world.parameters().items()}


def _set_weights(world: World, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in world.parameters().items():
            parameter.copy_(weights[name])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
