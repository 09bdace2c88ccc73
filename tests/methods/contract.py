"""The contract of every method: one record moves what is asked by at most what was declared.

A data set has six records, all adversarial, and another content for the last of them. A method
takes its step on every batch that can be drawn of them (96), from the same state and with the same
answers: answers are public, privacy is about what else differs. Then every two batches that differ
by one record, added or replaced, are compared, question by question:

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
CONTENTS = RECORDS + 1  # the last two are of the same record
DATASETS = 7
BATCHES = [
    batch for batch in itertools.product((False, True), repeat=CONTENTS) if not all(batch[-2:])
]
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


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs ``[CONTENTS, TOKENS, WIDTH]``, labels and groups ``[CONTENTS]``."""

    x: Tensor
    y: Tensor
    groups: Tensor
    kinds: list[str]

    def those(self, batch: tuple[bool, ...]) -> list[str]:
        """The kinds of a batch's records."""
        return list(itertools.compress(self.kinds, batch))


@lru_cache
def datasets(count: int) -> list[Dataset]:
    """Data sets whose records are of all kinds in turn, shuffled; more are the same and others."""
    draw = torch.Generator().manual_seed(0)
    shuffled = (list(KINDS)[place] for _ in itertools.count() for place in _shuffle(draw))
    return [
        _dataset(list(itertools.islice(shuffled, CONTENTS)), torch.Generator().manual_seed(number))
        for number in range(count)
    ]


def _shuffle(draw: torch.Generator) -> list[int]:
    places: list[int] = torch.randperm(len(KINDS), generator=draw).tolist()
    return places


def _dataset(kinds: list[str], draw: torch.Generator) -> Dataset:
    x = torch.randn(CONTENTS, TOKENS, WIDTH, generator=draw)
    y, groups = (torch.randint(2, (CONTENTS,), generator=draw) for _ in range(2))
    # Copies come last, when what they copy is there.
    for place in sorted(range(CONTENTS), key=lambda place: kinds[place] in COPIES):
        source = place
        if kinds[place] in COPIES:
            source = int(torch.randint(CONTENTS, (), generator=draw))
            y[place] = 1 - y[source] if kinds[place] == "opposite" else y[source]
        x[place] = KINDS[kinds[place]](x[source], draw)
    return Dataset(x, y, groups, kinds)


@dataclass
class World:
    """What a batch needs of its owner; ``other`` gives the last record its other content."""

    data: Dataset
    model: nn.Module
    sampling_rate: float = 0.1
    max_physical_batch: int | None = None
    other: bool = False
    loss = per_record(nn.CrossEntropyLoss(reduction="none"))

    @property
    def plan(self) -> Any:
        return SimpleNamespace(
            noise_multiplier=1.0, expected_batch_size=8, sampling_rate=self.sampling_rate
        )

    @property
    def sensitive_features(self) -> Tensor:
        return self.data.groups[self.places]

    @property
    def places(self) -> Tensor:
        """Where each record's content is, ``[RECORDS]``."""
        return torch.tensor([*range(RECORDS - 1), RECORDS if self.other else RECORDS - 1])

    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def fetch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.data.x[self.places[indices]], self.data.y[self.places[indices]]

    def draws_key(self, step: int) -> str:
        return f"step {step}"

    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers as they are now."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}


class Noisy:
    """Noisy answers, some of them far off; kept in ``given``, to be given again."""

    def __init__(self, draw: torch.Generator) -> None:
        self._draw = draw
        self.given: list[dict[str, Tensor]] = []

    def __call__(self, place: int, value: dict[str, Tensor], std: float) -> dict[str, Tensor]:
        if torch.rand((), generator=self._draw) < 0.25:
            std *= 100
        noisy = {
            name: torch.nan_to_num(one) + std * torch.randn(one.shape, generator=self._draw)
            for name, one in value.items()
        }
        self.given.append({name: one.clone() for name, one in noisy.items()})
        return noisy


@dataclass
class Release:
    """What a step asked, ``(name, sensitivity, sigma)``, with what value, and what else it left."""

    asked: list[tuple[str, float, float]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    left: dict[str, Any] = field(default_factory=dict)


def step(
    world: World, method: Method, number: int, batch: Tensor, answers: Callable[..., Any]
) -> Release:
    """A step of a method on some of the records, ``batch`` their numbers."""
    seen = Release()
    # Who keeps something of every record counts them through: full batches have no gaps.
    units = torch.arange(len(batch)) if _keeps_records(method) else batch
    program = method.step(PrivateBatch(number, batch, units, world))
    try:
        query = next(program)
        while True:
            own = query.value
            value = {"value": own} if isinstance(own, Tensor) else dict(own)
            seen.asked.append((query.name, query.sensitivity, query.sigma))
            seen.values.append(torch.cat([one.double().flatten() for one in value.values()]))
            std = query.sigma * query.sensitivity if query.sigma else 1.0
            query = program.send(answers(len(seen.asked) - 1, value, std))
    except StopIteration as end:
        seen.left = {"update": end.value, "state": method.state_dict(), "weights": world.weights()}
    return seen


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
    """Checks the contract on ``count`` data sets; raises ``Broken`` where it does not hold."""
    checked = Checked()
    declared = [(query.name, query.noise_multiplier) for query in make().queries(1.0)]
    for number, data in enumerate(datasets(count)):
        torch.manual_seed(number)
        world = World(data, Network(batch_norm), sampling_rate, chunk)
        # Gram norms are where sums cancel; the usual way has its turn too.
        with preferring("gram" if number % 2 == 0 else None):
            _confirm(world, make())
            for releases in _every_batch(world, make(), number):
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
    # What is kept of records differs between data sets: they go all the way from the start.
    first, last = (0, 1) if _keeps_records(method) else (WARM, WARM)
    starts, answers = [], []
    for number in range(last + 1):
        starts.append((copy.deepcopy(method), world.weights()))
        noisy = Noisy(draw)
        update = step(world, method, number, torch.arange(RECORDS), noisy).left["update"]
        answers.append(noisy.given)
        with torch.no_grad():
            for name, parameter in world.parameters().items():
                parameter -= 0.1 * update[name].clamp(-1, 1)
    seen: list[list[Release]] = [[] for _ in starts]
    for batch in BATCHES:
        method = copy.deepcopy(starts[first][0])
        world.other = batch[-1]
        numbers = torch.tensor(batch).nonzero()[:, 0].clamp(max=RECORDS - 1)
        for number in range(first, last + 1):
            _put(starts[number][1], world.model.state_dict())
            again = [{name: one.clone() for name, one in a.items()} for a in answers[number]]
            release = step(world, method, number, numbers, lambda place, *_, a=again: a[place])
            seen[number].append(release)
    yield from seen[first:]


@lru_cache
def _pairs() -> tuple[Tensor, Tensor]:
    """Batches, by number, that differ by one record: added, and replaced."""
    bits = torch.tensor(BATCHES, dtype=torch.long)
    apart = (bits[:, None] != bits[None]).sum(2).triu(1)
    size = bits.sum(1)
    return (apart == 1).nonzero().T, ((apart == 2) & (size[:, None] == size)).nonzero().T


def _compare(
    releases: list[Release], declared: list[tuple[str, float]], checked: Checked, data: Dataset
) -> None:
    empty = releases[0]
    if [(name, sigma) for name, _, sigma in empty.asked] != declared:
        raise Broken(f"{empty.asked} is asked, but {declared} is declared and charged")
    for batch, release in zip(BATCHES, releases, strict=True):
        if release.asked != empty.asked:
            raise Broken(f"{data.those(batch)} is asked {release.asked}, nobody {empty.asked}")
        if not all(bool(torch.isfinite(value).all()) for value in release.values):
            raise Broken(f"what is asked of {data.those(batch)} is not finite")
        for what, value in release.left.items():
            if not _equal(value, empty.left[what]):
                raise Broken(f"{data.those(batch)} changes the {what}, which is not asked for")
    added, replaced = _pairs()
    for place, (name, sensitivity, _) in enumerate(empty.asked):
        values = torch.stack([release.values[place] for release in releases])
        # A replaced record changes two counts by one each, where it moves a sum twice.
        twice = 2.0 if "gradient" in name else math.sqrt(2)
        for pairs, bound in ((added, sensitivity), (replaced, twice * sensitivity)):
            gaps = (values[pairs[0]] - values[pairs[1]]).norm(dim=1)
            gap, worst = float(gaps.max()), pairs[:, gaps.argmax()].tolist()
            if gap > bound * (1 + SLACK):
                one, other = (data.those(BATCHES[number]) for number in worst)
                raise Broken(f"'{name}' moves by {gap:.6g}, not {bound:.6g}: {one}, {other}")
            if pairs is added:
                checked.farthest[name] = max(checked.farthest.get(name, 0.0), gap / bound)
    checked.neighbours += added.shape[1]
    checked.replaced += replaced.shape[1]


@contextmanager
def preferring(name: str | None) -> Iterator[None]:
    """Layers that offer the kernel use it; others their first one. Nothing is measured."""
    usual = KERNELS.run

    def run(key: Any, candidates: Any, *rest: Any, **named: Any) -> Any:
        return candidates[name]() if name in candidates else usual(key, candidates, *rest, **named)

    KERNELS.pin()
    try:
        with mock.patch.object(KERNELS, "run", run):
            yield
    finally:
        KERNELS.forget()


def _put(values: dict[str, Tensor], into: dict[str, Tensor]) -> None:
    for name, value in values.items():
        into[name].copy_(value)


def _keeps_records(method: Method) -> bool:
    return any(hasattr(rule, "private_state_dict") for rule in method.evaluation)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
