"""The tasks of the search for records: features, the ranges that are searched, and the sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from plumbline import data
from plumbline.clipping import Automatic, Clipping, Flat, Global
from plumbline.data import Split
from plumbline.experiments.loading import cache_folder
from plumbline.mechanism.release import StepRelease
from plumbline.models import scattering
from plumbline.training.moments import mean_release, private_mean

METHODS = ("dpsgd", "automatic", "global_scaling")
CENTRE = mean_release(32.0, seeded=True)
"""The private mean that is subtracted from "centred" scattering features."""
HELD_OUT = 5000
_AT_ONCE = 4096

Range = tuple[float, float]


@dataclass(frozen=True)
class Ranges:
    """What is searched, evenly on a logarithmic scale.

    Attributes:
        reach: The learning rate times C: how far a record can pull.
        clip: C.
        bound: Z, of global scaling, in lengths of a record.
        usual: About a gradient's length, likewise, which global scaling's rate is told in.
    """

    reach: Range
    clip: Range
    bound: Range
    usual: float


@dataclass(frozen=True)
class Trial:
    """A point of the search."""

    method: str
    reach: float
    clip: float
    bound: float
    learning_rate: float

    @classmethod
    def drawn(cls, method: str, number: int, ranges: Ranges, length: float) -> Trial:
        """The same for every method: what a method has no use for it does not look at."""
        draw = random.Random(number)
        reach, clip, bound = (_log(draw, *r) for r in (ranges.reach, ranges.clip, ranges.bound))
        # Global scaling shortens everything by the bound, which the rate makes up for.
        rate = reach / clip * (bound / ranges.usual if method == "global_scaling" else 1)
        return cls(method, *map(_short, (reach, clip, max(clip, bound * length), rate)))

    @property
    def clipping(self) -> Clipping:
        """The strategy, as the method of that name has it."""
        if self.method == "dpsgd":
            return Flat(self.clip)
        if self.method == "automatic":
            return Automatic(self.clip)
        return Global(self.clip, self.bound)


@dataclass(frozen=True)
class Records:
    """Features `[n, d]` and labels of the part that trains and of the part that judges.

    Attributes:
        length: A record's norm, before a mean is subtracted.
        before: What was released before the training.
    """

    x: Tensor
    y: Tensor
    judged_x: Tensor
    judged_y: Tensor
    length: float
    before: tuple[StepRelease, ...] = ()

    @classmethod
    def of(cls, x: Tensor, y: Tensor, length: float) -> Records:
        """The last `HELD_OUT` records, in a fixed random order, judge."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        train, judged = order[:-HELD_OUT], order[-HELD_OUT:]
        return cls(x[train], y[train], x[judged], y[judged], length)

    def centred(self) -> Records:
        """Less a mean that is released privately."""
        mean = private_mean(
            torch.split(self.x, _AT_ONCE),
            records=len(self.x),
            noise_multiplier=CENTRE.noise_multiplier,
            bound=self.length,
            seed=0,
        )
        return replace(
            self, x=self.x - mean, judged_x=self.judged_x - mean, before=(*self.before, CENTRE)
        )


@dataclass(frozen=True)
class Task:
    """What is searched for one data set.

    Attributes:
        epochs: How many, for each epsilon.
        batch: The expected batch.
        features: How to load the records, for each kind of features.
        ranges: What is drawn from.
        outputs: Scores of the model; a single one is logistic.
        bias: Whether the model learns biases. Without, it starts at zero.
        decays: Of the averaged weights.
    """

    epochs: Mapping[float, int]
    batch: int
    features: Mapping[str, Callable[[], Records]]
    ranges: Ranges
    outputs: int = 10
    bias: bool = True
    decays: tuple[float, ...] = (0.98, 0.99, 0.995)


def _images(name: str, epochs: Mapping[float, int]) -> Task:
    options = {"allow_partial": True} if name == "cifar10" else {}

    def pixels() -> Records:
        part = data.load(name, **options).train
        return _normalised(part, part.fetch(torch.arange(len(part)))[0], groups=1)

    def scattered() -> Records:
        part = data.load(name, **options).train
        found = scattering.features(part, cache=cache_folder())
        return _normalised(part, found, groups=found.shape[1] // 3)

    return Task(
        epochs=epochs,
        batch=4096,
        features={
            "scattering": scattered,
            "centred": lambda: scattered().centred(),
            "pixels": pixels,
        },
        # On 63 x 63 numbers, as MNIST's scattering features are, Z is 10 to 120.
        ranges=Ranges(
            reach=(0.15, 1.2), clip=(0.05, 5.0), bound=(10 / 63, 120 / 63), usual=40 / 63
        ),
    )


def _normalised(part: Split, found: Tensor, groups: int) -> Records:
    norm = nn.GroupNorm(groups, found.shape[1], affine=False)
    x = torch.empty(len(part), found[0].numel())
    for start in range(0, len(part), _AT_ONCE):
        x[start : start + _AT_ONCE] = norm(found[start : start + _AT_ONCE]).flatten(1)
    return Records.of(x, part.y, math.sqrt(x.shape[1]))


def _reviews(bins: int, *, bigrams: bool = False) -> Records:
    part = data.load("imdb-hashed", bins=bins, bigrams=bigrams).train
    pieces = [torch.zeros(len(y), bins).scatter_add_(1, *rows) for rows, y in part.pieces()]
    return Records.of(torch.cat(pieces), part.y, length=1.0)


def _log(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _short(value: float) -> float:
    return float(f"{value:.3g}")


LONGER = {1.0: 30, 2.0: 45, 3.0: 60}
TASKS = {
    "mnist": _images("mnist", LONGER),
    "fashion-mnist": _images("fashion-mnist", LONGER),
    "cifar10": _images("cifar10", {3.0: 60}),
    "imdb": Task(
        epochs={1.0: 20, 4.0: 20, 8.0: 20},
        batch=4000,
        features={
            "2,048 bins": lambda: _reviews(2048),
            "8,192 bins": lambda: _reviews(8192),
            "32,768 bins": lambda: _reviews(32768),
            "32,768 bins, pairs": lambda: _reviews(32768, bigrams=True),
        },
        ranges=Ranges(reach=(3.0, 40.0), clip=(0.05, 1.0), bound=(0.3, 2.0), usual=0.5),
        outputs=1,
        bias=False,
        decays=(0.0, 0.98),
    ),
}
