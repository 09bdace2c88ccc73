"""What a method is: its step in the user's loop with the user's optimizer, questions and state.

Every named method's literal reference is in ``test_references_*.py``.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import DpSat, InnerMomentum, OuterMomentum, Plain
from plumbline.gradients.kernels import KERNELS
from plumbline.gradients.summation import ROUNDING
from plumbline.mechanism.noise import gaussian
from plumbline.mechanism.release import PoissonSampling

RECORDS, STEPS, EXPECTED, CLIP, SIGMA, RATE = 30, 6, 8, 0.6, 1.3, 0.2
LOSS = nn.CrossEntropyLoss(reduction="none")


@pytest.fixture(autouse=True)
def _unpinned() -> Iterator[None]:
    yield
    KERNELS.forget()


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
    literal(by_hand, batches, CLIP, noise, SIGMA * CLIP * (1 + ROUNDING))
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
    assert (method.name, method.evaluation) == ("Flat", ())
    assert method.unbounded_reason is None
    assert pl.methods.compose(clipping=Flat(2.0), name="mine").name == "mine"
    both = pl.methods.compose(evaluation=[OuterMomentum(), DpSat()], clipping=Flat(2.0))
    assert both.name == "DpSat + OuterMomentum + Flat"  # in the order of a step
    assert [type(rule) for rule in both.evaluation] == [DpSat, OuterMomentum]


def test_the_ordinary_gradient_is_a_rule_too() -> None:
    runs = []
    for rules in ((), Plain()):
        model = network()
        method = pl.methods.compose(
            evaluation=rules, clipping=Flat(CLIP), name="plain", noisy=False
        )
        private = make(model, method)
        for batch in private:
            private.step(batch)
        runs.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_the_state_goes_round() -> None:
    method = pl.methods.dpsgd()
    state = method.state_dict()
    assert state == {"evaluation": [], "clipping": {}}
    assert method.private_state_dict() == {}
    pl.methods.dpsgd().load_state_dict(state)
    with pytest.raises(ValueError, match=r"Flat carries no state, but past was stored\. Resume"):
        method.load_state_dict({"evaluation": [], "clipping": {"past": 1}})
    with pytest.raises(ValueError, match="DpSat carries previous, but no state was stored"):
        pl.methods.dp_sat().load_state_dict({"evaluation": [{}], "clipping": {}})


def test_each_part_gets_its_own_state_back() -> None:
    method = pl.methods.inner_outer()
    private = make(network(), method)
    for batch in private:
        private.step(batch)
    state = private.method.state_dict()
    assert [set(part) for part in state["evaluation"]] == [{"iterates"}, {"momentum"}]
    method.load_state_dict(state)
    inner, outer = method.evaluation
    assert isinstance(inner, InnerMomentum)
    assert isinstance(outer, OuterMomentum)
    assert (inner.iterates, outer.momentum) == tuple(
        value for part in state["evaluation"] for value in part.values()
    )


def test_a_run_does_not_change_the_method_it_was_given() -> None:
    """The same method may be given to several runs."""
    method = pl.methods.dp_sat()
    private = make(network(), method)
    for batch in private:
        private.step(batch)
    assert method.state_dict() == pl.methods.dp_sat().state_dict()


def test_groups_are_needed_and_declared() -> None:
    with pytest.raises(ValueError, match=r"'dpsgd_f' treats groups.*give sensitive_features"):
        make(network(), pl.methods.dpsgd_f())
    private = make(network(), pl.methods.dpsgd_f(), sensitive_features=[2] * RECORDS)
    batch = next(iter(private))
    with pytest.raises(
        ValueError, match=r"has a value that is not one of the declared groups \[0, 1\]"
    ):
        private.step(batch)
    assert private.steps_done == 0  # refused before anything was charged


def test_a_bad_bound_is_refused_where_it_enters() -> None:
    with pytest.raises(ValueError, match="clip is -1"):
        pl.methods.dpsgd(clip=-1)


@pytest.mark.parametrize("name", ["dpsgd", "dpsgd_f", "dp_sam", "nonprivate", "fairlens"])
def test_what_a_step_releases_is_said_once(name: str) -> None:
    method = pl.methods.METHODS[name].make()
    sampling = PoissonSampling(rate=0.25)
    release = method.release(SIGMA, sampling)
    assert release.sampling == sampling
    assert release.queries == method.queries(SIGMA)
    assert release.composition == method.composition
    assert release.unbounded_reason == method.unbounded_reason
    assert method.private == (name not in ("nonprivate", "fairlens"))
    charged = make(network(), method, sensitive_features=[0, 1] * (RECORDS // 2)).plan.release
    assert charged == method.release(SIGMA, charged.sampling)


def test_a_method_without_a_guarantee_gets_the_noise_of_dpsgd() -> None:
    budget = pl.Budget(epsilon=2.0, delta=1e-5, steps=10, expected_batch_size=EXPECTED)
    needed = budget.resolve(1000, accountant="rdp", relation="replace_one").noise_multiplier
    given = pl.methods.nonprivate().budget(budget, 1000, accountant="rdp", relation="replace_one")
    assert (given.epsilon, given.noise_multiplier) == (None, needed)
    assert pl.methods.dpsgd().budget(budget, 1000) is budget
    assert pl.methods.nonprivate().budget(given, 1000) is given
