"""Public data: added unclipped and unnoised, from its own stream, and the statement says so."""

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.mechanism.random_source import SeededSource
from plumbline.training.distributed import Ranks
from plumbline.training.losses import per_record
from plumbline.training.public import PublicData, PublicStream
from tests.training.small import (
    LOSS,
    clipped_sum,
    data,
    gradient_of,
    network,
    noise_of,
    private,
    run,
    weights,
)

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}


def stream(public: PublicData, seed: int = 7) -> PublicStream:
    return PublicStream(public, per_record(LOSS), SeededSource(seed))


@pytest.mark.parametrize("weight", [1.0, 0.25, -2.0])
def test_the_weighted_mean_gradient_is_added(weight: float) -> None:
    x, y = data(30, seed=9)
    # The whole public set in each step: which records they are is then known.
    model = network()
    start = copy.deepcopy(model)
    mine = private(model, lr=1.0, public=PublicData((x, y), batch_size=30, weight=weight))
    (indices,) = run(mine, 1)
    total = clipped_sum(start, data(), list(indices[:, None]), 0.5)
    released = (total + 0.5 * noise_of(mine, 0).float()) / 10
    expected = released + weight * gradient_of(start, x, y) / 30
    torch.testing.assert_close(weights(start) - weights(model), expected, **ROUNDING)


def test_batches_come_in_shuffled_epochs_of_their_own() -> None:
    found = stream(PublicData(data(10), batch_size=4))
    epoch = [found.indices(step) for step in range(3)]
    assert [len(part) for part in epoch] == [4, 4, 2]
    assert sorted(torch.cat(epoch).tolist()) == list(range(10))
    following = torch.cat([found.indices(step) for step in range(3, 6)])
    assert sorted(following.tolist()) == list(range(10))
    assert not torch.equal(following, torch.cat(epoch))
    again = stream(PublicData(data(10), batch_size=4))
    assert torch.equal(again.indices(4), found.indices(4))
    other = stream(PublicData(data(10), batch_size=4), seed=8)
    assert not torch.equal(torch.cat([other.indices(step) for step in range(3)]), torch.cat(epoch))


def test_its_randomness_is_under_its_own_domain() -> None:
    asked: list[str] = []

    class Watched(SeededSource):
        def stream(self, domain: str, *position: int) -> Any:
            asked.append(domain)
            return super().stream(domain, *position)

    watched = PublicStream(PublicData(data(10), batch_size=4), per_record(LOSS), Watched(7))
    watched.indices(0)
    watched.indices(3)
    assert asked == ["public", "public"]


def test_the_private_batches_are_as_without() -> None:
    with_public = run(private(public=PublicData(data(8), batch_size=3)))
    without = run(private())
    assert all(map(torch.equal, with_public, without))


def test_it_costs_no_privacy() -> None:
    with_public, without = private(public=PublicData(data(8), batch_size=3)), private()
    assert with_public.plan.epsilon == without.plan.epsilon
    run(with_public)
    assert with_public.epsilon() == without.plan.epsilon


def test_the_statement_says_so() -> None:
    mine = private(public=PublicData(data(1234), batch_size=3, weight=0.5))
    (item,) = [one for one in json.loads(mine.statement("json"))["not_covered"] if "public" in one]
    for fact in ("1,234 further records", "3 of them", "weight 0.5", "nothing about them"):
        assert fact in item
    assert "the public data: 1,234" in " ".join(mine.statement().split())
    assert "the public data" not in private().statement()


def test_a_loss_of_its_own_may_reduce() -> None:
    x, y = data(12, seed=9)
    model = network()
    parameters = dict(model.named_parameters())
    own = stream(PublicData((x, y), batch_size=12, loss=nn.CrossEntropyLoss()))
    found = own.gradient(model, parameters, 0, Ranks())
    expected = gradient_of(model, x, y) / 12
    torch.testing.assert_close(torch.cat([g.flatten() for g in found.values()]), expected)

    @pl.batch_loss
    def unlabelled(of: nn.Module, batch: Tensor) -> Tensor:
        return of(batch).square().sum(1)

    other = stream(PublicData(x, batch_size=12, loss=unlabelled))
    found = other.gradient(model, parameters, 0, Ranks())
    model(x).square().sum(1).mean().backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name], parameter.grad)


def test_grad_and_unused_parameters_are_left() -> None:
    model = network()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    found = stream(PublicData(data(5), batch_size=2)).gradient(
        model, dict(model.named_parameters()), 0, Ranks()
    )
    assert torch.equal(found["unused"], torch.zeros(3))
    assert all(p.grad is None for p in model.parameters())


def test_a_public_gradient_that_is_not_finite_is_left_out() -> None:
    x, y = data(8)
    public = PublicData((torch.full_like(x, float("nan")), y), batch_size=4)
    model = network()
    with pytest.warns(RuntimeWarning, match="public gradient of step 0 is not finite"):
        run(private(model, public=public), 1)
    assert torch.isfinite(weights(model)).all()


def test_public_data_that_fails_costs_nothing() -> None:
    mine = private(public=PublicData(torch.ones(8, 5), batch_size=4))  # no target
    with pytest.raises(ValueError, match="no target"):
        run(mine)
    assert mine.charged == 0


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    found = stream(PublicData(data(5), batch_size=64))
    assert sorted(found.indices(3).tolist()) == [0, 1, 2, 3, 4]
    assert "5 of them in each step" in found.not_covered


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"batch_size": 4, "weight": float("nan")}, "weight is nan; it must be a finite number"),
        ({"batch_size": 4, "weight": float("inf")}, "weight is inf"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PublicData(data(5), **settings)


def test_a_checkpoint_goes_on_with_the_same_public_batches(tmp_path: Any) -> None:
    public = PublicData(data(8), batch_size=3)
    whole, broken, resumed = network(), network(), network()
    run(private(whole, public=public))
    mine = private(broken, public=public)
    run(mine, 2)
    mine.save(tmp_path / "checkpoint")
    settings: dict[str, Any] = {
        "loss": LOSS,
        "method": pl.methods.dpsgd(clip=0.5),
        "budget": mine.plan.budget,
        "seed": 7,
        "deterministic": True,
    }

    def resume(**changes: Any) -> pl.Private:
        return pl.make_private(
            resumed,
            torch.optim.SGD(resumed.parameters(), lr=0.5),
            data(),
            checkpoint=tmp_path / "checkpoint",
            **settings,
            **changes,
        )

    with pytest.raises(RuntimeError, match=r"public\.batch_size is 4 here and 3 in the checkpoint"):
        resume(public=PublicData(data(8), batch_size=4))
    with pytest.raises(RuntimeError, match="public"):
        resume()
    run(resume(public=public))
    assert torch.equal(weights(whole), weights(resumed))
