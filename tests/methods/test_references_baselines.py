"""The methods without a guarantee against literal loops: no noise, or noise that covers little."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from tests.methods.literal import (
    CHUNKS,
    CLIP,
    LOSS,
    RECORDS,
    Case,
    Reference,
    clipped,
    close,
    flat,
    images,
    network,
    train,
)

RADIUS = 0.4
OF_RECORD = [record % 2 for record in range(RECORDS)]


class Sgd(Reference):
    """The sum of the gradients over L (methods.md, A1), as all methods are divided."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        return self.mean(batch)

    def mean(self, batch: list[int], at: Tensor | None = None) -> Tensor:
        total = self.zero()
        for record in batch:
            total += self.gradient(record, at)
        return total / self.expected

    def clipped_mean(self, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            total += clipped(self.gradient(record))
        return total / self.expected


class Sam(Sgd):
    """Foret et al. 2021: the gradient uphill along the batch's own gradient (002, Figs. 5, 7)."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        uphill = self.mean(batch)
        if not batch:
            return uphill
        return self.mean(batch, self.theta + RADIUS * uphill / uphill.norm())


class NormPenalty(Sgd):
    """Paper 000, Eq. 12 and 15: the gradient of L + lambda |grad L|, L the batch's mean loss."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        if not batch:
            return self.zero()
        model = self.model()
        parameters = list(model.parameters())
        losses = [LOSS(model(self.x[i : i + 1]), self.y[i : i + 1]).sum() for i in batch]
        loss = torch.stack(losses).sum() / self.expected
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        norm = torch.stack([part.square().sum() for part in gradient]).sum().sqrt()
        return flat(torch.autograd.grad(loss + RADIUS * norm, parameters))


class ClippedOnly(Sgd):
    """Clipped SGD: DP-SGD with sigma 0."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        return self.clipped_mean(batch)


class DirectionOnly(Sgd):
    """Paper 004, Table 1 and App. B.4: |gbar| / |g| g, no error of direction."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        true, bent = self.mean(batch), self.clipped_mean(batch)
        return bent.norm() / true.norm() * true if batch else self.zero()


class MagnitudeOnly(Sgd):
    """Paper 004, Table 1 and App. B.4: |g| / |gbar| gbar, no error of length."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        true, bent = self.mean(batch), self.clipped_mean(batch)
        return true.norm() / bent.norm() * bent if batch else self.zero()


class FairLens(Reference):
    """Paper 004, Alg. 4: R1 and R2 of the whole batch in every record's loss, by autograd alone.

    R1 is differentiated through the clipping factors. Where a group has no record, the means that
    R1 and R2 are made of do not exist, and the loss is the ordinary one.
    """

    weights = (0.6, 8.0)

    def update(self, step: int, batch: list[int]) -> Tensor:
        regulariser = self.regulariser(batch)
        total = self.zero()
        for record in batch:
            total += clipped(self.gradient(record) + regulariser)
        return self.released(total, CLIP, step)

    def regulariser(self, batch: list[int]) -> Tensor:
        """``gamma_1 grad R1 + gamma_2 grad R2``."""
        if len({OF_RECORD[record] for record in batch}) < 2:
            return self.zero()
        model = self.model()
        parameters = list(model.parameters())
        gradients, bounded, chances = [], [], []
        for record in batch:
            output = model(self.x[record : record + 1])
            loss = LOSS(output, self.y[record : record + 1]).sum()
            parts = torch.autograd.grad(loss, parameters, create_graph=True)
            gradient = torch.cat([part.flatten() for part in parts])
            gradients.append(gradient)
            bounded.append(gradient * torch.clamp(CLIP / gradient.norm(), max=1))
            chances.append(output.softmax(1)[0, 1])
        members = [[place for place, r in enumerate(batch) if OF_RECORD[r] == k] for k in (0, 1)]
        of_group = [torch.stack([gradients[i] for i in group]).mean(0) for group in members]
        f_a, f_b = (torch.stack([chances[i] for i in group]).mean() for group in members)
        bias = torch.stack(bounded).mean(0) - torch.stack(gradients).mean(0)
        first = torch.dot(of_group[0] - of_group[1], bias).abs()
        second = (f_a * (1 - f_a) + f_b * (1 - f_b)) / 2
        self.terms.append((float(first.detach()), float(second.detach())))
        loss = self.weights[0] * first + self.weights[1] * second
        return flat(torch.autograd.grad(loss, parameters))

    def check(self) -> None:
        self.terms: list[tuple[float, float]] = []
        super().check()
        assert all(max(term) > 1e-3 for term in zip(*self.terms, strict=True))


class FirstTermOnly(FairLens):
    weights = (0.6, 0.0)


class SecondTermOnly(FairLens):
    weights = (0.0, 8.0)


class OtherGroupAbsent(FairLens):
    """Where no record is of the second group, it is DP-SGD."""

    def regulariser(self, batch: list[int]) -> Tensor:
        return self.zero()


def with_groups() -> dict[str, Any]:
    return {"sensitive_features": OF_RECORD}


def with_one_group() -> dict[str, Any]:
    return {"sensitive_features": [0] * RECORDS}


named = pl.methods
CASES = [
    Case(named.nonprivate(), Sgd),
    Case(named.nonprivate_sam(RADIUS), Sam),
    Case(named.gradient_norm_penalty(RADIUS), NormPenalty),
    Case(named.clipped_only(CLIP), ClippedOnly),
    Case(named.direction_only(CLIP), DirectionOnly),
    Case(named.magnitude_only(CLIP), MagnitudeOnly),
    Case(named.fairlens(CLIP, weights=FairLens.weights), FairLens, "", with_groups),
    Case(named.fairlens(CLIP, weights=(0.6, 0.0)), FirstTermOnly, "R1 alone", with_groups),
    Case(named.fairlens(CLIP, weights=(0.0, 8.0)), SecondTermOnly, "R2 alone", with_groups),
    Case(named.fairlens(CLIP), OtherGroupAbsent, "a group absent", with_one_group),
]


@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_baseline_is_its_papers_loop(case: Case, most: int | None) -> None:
    run = case.check(most)
    assert run.private.epsilon() == float("inf")


def test_fairlens_of_one_logit() -> None:
    """A sigmoid of one logit is a softmax of it and zero."""

    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            two = self.inner(x)
            return two[:, 1] - two[:, 0]

    x, y = images()
    method = named.fairlens(CLIP, weights=FairLens.weights)
    two = train(method, data=(x, y), **with_groups())
    one = train(
        method,
        Difference(),
        (x, y.double()),
        loss=nn.BCEWithLogitsLoss(reduction="none"),
        **with_groups(),
    )
    close(one.updates, two.updates)


def three_classes() -> dict[str, Any]:
    return {"model": nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()}


def loss_of_model_and_batch() -> dict[str, Any]:
    return {"loss": pl.batch_loss(lambda model, batch: LOSS(model(batch[0]), batch[1]))}


def users() -> dict[str, Any]:
    return {"user_ids": [record // 3 for record in range(RECORDS)], "expected": 5}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (three_classes, "two classes: the model must give two logits"),
        (loss_of_model_and_batch, "needs the model's outputs, which a loss of .model, batch. does"),
        (users, r"single records.*not for users with several\. Leave user_ids out"),
    ],
)
def test_fairlens_says_what_it_is_not_defined_for(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(named.fairlens(CLIP), **{**with_groups(), **settings()})


def test_fairlens_needs_two_groups() -> None:
    with pytest.raises(ValueError, match=r"'fairlens' treats groups .* give sensitive_features"):
        train(named.fairlens(CLIP))
    for groups in ((0,), (0, 1, 2), (1, 1)):
        with pytest.raises(ValueError, match="FairLens is defined for two groups"):
            named.fairlens(CLIP, groups)
    with pytest.raises(ValueError, match=r"a value that is not one of the two groups \[0, 5\]"):
        train(named.fairlens(CLIP, groups=(0, 5)), **with_groups())
    with pytest.raises(ValueError, match=r"a weight is -1\.0"):
        named.fairlens(CLIP, weights=(1.0, -1.0))
