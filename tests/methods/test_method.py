"""The methods by name, against literal loops over one record at a time."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import Plain
from plumbline.mechanism.noise import gaussian

RECORDS, STEPS, EXPECTED, CLIP, SIGMA, RATE = 30, 6, 8, 0.6, 1.3, 0.2
LOSS = nn.CrossEntropyLoss(reduction="none")


def images() -> tuple[Tensor, Tensor]:
    x = torch.randn(RECORDS, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return x, (x.sum((1, 2, 3)) > 0).long()


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)
    )


def make(model: nn.Module, method: pl.methods.Method, **settings: Any) -> pl.Private:
    budget = pl.Budget(
        noise_multiplier=SIGMA, delta=1e-3, steps=STEPS, expected_batch_size=EXPECTED
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    settings = {"seed": 3, "deterministic": True, **settings}
    return pl.make_private(
        model, optimizer, images(), loss=LOSS, method=method, budget=budget, **settings
    )


def literal(
    model: nn.Module, batches: list[Tensor], clip: float, noise: list[Tensor], std: float
) -> None:
    """DP-SGD as in the paper's Algorithm 1, one record at a time, with momentum by hand."""
    x, y = images()
    parameters = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    for batch, drawn in zip(batches, noise, strict=True):
        total = [torch.zeros_like(p) for p in parameters]
        for record in batch.tolist():
            loss = LOSS(model(x[record : record + 1]), y[record : record + 1]).sum()
            gradient = torch.autograd.grad(loss, parameters)
            norm = float(torch.cat([g.flatten() for g in gradient]).norm())
            for part, g in zip(total, gradient, strict=True):
                part += g / max(1.0, norm / clip)
        parts = drawn.float().split([p.numel() for p in parameters])
        with torch.no_grad():
            for p, part, z, v in zip(parameters, total, parts, velocity, strict=True):
                v.mul_(0.9).add_((part + std * z.view_as(part)) / EXPECTED)
                p.sub_(RATE * v)


@pytest.mark.parametrize("most", [None, 3], ids=["whole", "chunks"])
def test_dpsgd_is_the_papers_loop(most: int | None) -> None:
    model = network()
    by_hand = copy.deepcopy(model)
    private = make(model, pl.methods.dpsgd(clip=CLIP), max_physical_batch=most)
    batches = []
    for batch in private:
        batches.append(batch.indices)
        private.step(batch)
    assert len({len(batch) for batch in batches}) > 1
    size = sum(p.numel() for p in model.parameters())
    noise = [gaussian(private._source.stream("noise", step), size) for step in range(STEPS)]
    literal(by_hand, batches, CLIP, noise, SIGMA * CLIP)
    for (name, found), expected in zip(model.named_parameters(), by_hand.parameters(), strict=True):
        # Six float32 steps whose sums were made in another order.
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_clipped_only_is_the_loop_without_noise() -> None:
    model = network()
    by_hand = copy.deepcopy(model)
    private = make(model, pl.methods.clipped_only(clip=CLIP))
    batches = []
    for batch in private:
        batches.append(batch.indices)
        private.step(batch)
    size = sum(p.numel() for p in model.parameters())
    literal(by_hand, batches, CLIP, [torch.zeros(size)] * STEPS, 0.0)
    for found, expected in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert private.epsilon() == float("inf")
    assert "'clipped_only' adds no noise" in " ".join(private.statement().split())


def test_a_method_without_noise_has_no_epsilon_to_calibrate() -> None:
    budget = pl.Budget(epsilon=3, delta=1e-3, steps=2, expected_batch_size=5)
    model = network()
    with pytest.raises(ValueError, match=r"no guarantee at any noise.*give noise_multiplier"):
        pl.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            images(),
            loss=LOSS,
            method=pl.methods.clipped_only(),
            budget=budget,
        )


def test_what_is_asked_is_what_is_declared() -> None:
    (query,) = pl.methods.dpsgd(clip=CLIP).queries(SIGMA)
    assert (query.name, query.noise_multiplier) == ("gradient", SIGMA)
    (query,) = pl.methods.clipped_only(clip=CLIP).queries(SIGMA)
    assert query.noise_multiplier == 0


def test_composing() -> None:
    method = pl.methods.compose(clipping=Flat(2.0))
    assert method.name == "Plain + Flat"
    assert isinstance(method.evaluation, Plain)
    assert method.unbounded_reason is None
    assert pl.methods.compose(clipping=Flat(2.0), name="mine").name == "mine"


def test_the_state_goes_round() -> None:
    method = pl.methods.dpsgd()
    state = method.state_dict()
    assert state == {"evaluation": {}, "clipping": {}}
    pl.methods.dpsgd().load_state_dict(state)
    with pytest.raises(ValueError, match="Plain carries no state"):
        method.load_state_dict({"evaluation": {"past": 1}, "clipping": {}})


def test_a_bad_bound_is_refused_where_it_enters() -> None:
    with pytest.raises(ValueError, match="clip is -1"):
        pl.methods.dpsgd(clip=-1)
