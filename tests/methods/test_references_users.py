"""With ``user_ids`` a user and all of their records are the unit: literal loops over users."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import Bam, Views
from tests.methods.literal import (
    CHUNKS,
    CLIP,
    RECORDS,
    SIGMA,
    Case,
    Reference,
    Run,
    clipped,
)
from tests.methods.test_references_evaluation import brightened
from tests.methods.test_references_random import zeta

RADIUS, VIEWS, USERS = 0.4, 3, 10
USER_OF = list("abacbdaefbgchaidjcbaefgbiaacdb")  # from one record to seven
RECORDS_OF = [[r for r in range(RECORDS) if USER_OF[r] == user] for user in sorted(set(USER_OF))]


class OfUsers(Reference):
    """A user's gradient is the sum of their records' gradients, whatever each of these is."""

    def units(self, step: int) -> list[int]:
        return self.run.units[step]

    def seen(self, step: int, record: int) -> tuple[Tensor, Tensor]:
        """What the model sees of a record: itself."""
        return self.x[record : record + 1], self.y[record : record + 1]

    def of_user(self, step: int, user: int, at: Tensor | None = None) -> Tensor:
        total = self.zero()
        for record in RECORDS_OF[user]:
            total += self.slope(*self.seen(step, record), at)
        return total

    def update(self, step: int, batch: list[int]) -> Tensor:
        assert sorted(batch) == sorted(r for user in self.units(step) for r in RECORDS_OF[user])
        total = self.zero()
        for user in self.units(step):
            total += clipped(self.of_user(step, user))
        return self.released(total, CLIP, step)


class BamOfUsers(OfUsers):
    """Paper 000, Eq. 14 for a user: all of their records at the user's own weights."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for user in self.units(step):
            uphill = self.of_user(step, user)
            moved = self.theta + RADIUS * uphill / uphill.norm()
            total += clipped(self.of_user(step, user, moved))
        return self.released(total, CLIP, step)


class Viewed(OfUsers):
    """Every record of a user as the mean over its own views."""

    def seen(self, step: int, record: int) -> tuple[Tensor, Tensor]:
        drawn = self.draws("views", step, record).repeat(VIEWS).uniform().double()
        rows = [self.x[record] * (0.5 + float(number)) for number in drawn]
        return torch.stack(rows), self.y[record].repeat(VIEWS)


class BamViewed(BamOfUsers, Viewed):
    """Both at once: the views of all of a user's records, at the user's own weights."""


class AveragedUsers(OfUsers):
    """Paper 003, section 3.3: a user draws one bucket for all of their records (A5)."""

    size = 2

    def update(self, step: int, batch: list[int]) -> Tensor:
        buckets: dict[int, Tensor] = {}
        count = round(self.expected / self.size)
        for user in self.units(step):
            bucket = int(self.draws("buckets", step, user).integers(count))
            buckets[bucket] = buckets.get(bucket, self.zero()) + self.of_user(step, user)
        total = self.zero()
        for pooled in buckets.values():
            total += clipped(pooled / self.size)
        return self.noisy(total, 2 * CLIP, step, None, SIGMA) / (self.expected / self.size)


class NoisyUsers(OfUsers):
    """Paper 001, Eq. 11: one zeta for a user, not one for each record."""

    scale = 1.5

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for user in self.units(step):
            seed = int(self.draws("pre-clipping", step, user).seeds())
            total += clipped(self.of_user(step, user) + self.scale * zeta(self.run.start, seed))
        return self.released(total, CLIP, step)


class MomentaOfUsers(OfUsers):
    """Paper 003, Alg. 1 with a momentum for every user."""

    rate = 0.3

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.momenta = [self.of_user(0, user) for user in range(len(RECORDS_OF))]

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for user in self.units(step):
            if step:
                fresh = self.of_user(step, user)
                self.momenta[user] = self.rate * fresh + (1 - self.rate) * self.momenta[user]
            total += clipped(self.momenta[user])
        return self.released(total, CLIP, step)

    def state(self) -> dict[str, Any]:
        sizes = [p.numel() for p in self.run.start.parameters()]
        by_parameter = zip(*(momentum.split(sizes) for momentum in self.momenta), strict=True)
        return {"momenta": torch.cat([torch.cat(parts) for parts in by_parameter])}


def sampled() -> dict[str, Any]:
    """Batches of 5, 4, 4, 0 and 5 users."""
    return {"user_ids": USER_OF, "expected": 4, "seed": 792}


def all_users() -> dict[str, Any]:
    return {"user_ids": USER_OF, "expected": USERS}


def together(*rules: Any) -> pl.methods.Method:
    return pl.methods.compose(evaluation=rules, clipping=Flat(CLIP))


CASES = [
    Case(pl.methods.dpsgd(CLIP), OfUsers, "", sampled),
    Case(pl.methods.bam(CLIP, RADIUS), BamOfUsers, "", sampled),
    Case(together(Views(brightened, VIEWS)), Viewed, "", sampled),
    Case(together(Views(brightened, VIEWS), Bam(RADIUS)), BamViewed, "", sampled),
    Case(pl.methods.averaged(CLIP, AveragedUsers.size), AveragedUsers, "", sampled),
    Case(pl.methods.pre_clip_noise(CLIP, NoisyUsers.scale), NoisyUsers, "", sampled),
    Case(pl.methods.dp_gd_momentum(0.3, CLIP), MomentaOfUsers, "", all_users),
]


@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_user_is_one_unit(case: Case, most: int | None) -> None:
    run = case.check(most)
    if case.settings is sampled:
        assert [len(units) for units in run.units] == [5, 4, 4, 0, 5]


def test_the_users_are_unlike() -> None:
    sizes = [len(records) for records in RECORDS_OF]
    assert (len(sizes), sum(sizes), min(sizes), max(sizes)) == (USERS, RECORDS, 1, 7)
