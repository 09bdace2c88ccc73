"""What the papers prove or print about clipping's bias and its price, through the library itself.

Paper 003, section 3.1 (two samples); paper 000, Eq. 13 and 14, Lemmas 1 and 3; paper 002,
Theorem 4.1, and methods.md A3 (what the further questions of a method cost).
"""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients import capture
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.random_source import SeededSource
from plumbline.mechanism.release import PoissonSampling, Query, Sampling, StepRelease
from plumbline.methods import Method
from plumbline.training.answering import Answers
from plumbline.training.batches import PrivateBatch

SQUARED = nn.MSELoss(reduction="none")


def data(records: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(records, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(records, 2, generator=generator, dtype=torch.float64)


def network(seed: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def private(method: Method, model: nn.Module, dataset: Any, **settings: Any) -> pl.Private:
    """A run on full batches."""
    size = len(dataset[0])
    budget = {"noise_multiplier": 1.0, "delta": 1e-3, "steps": 3, "expected_batch_size": size}
    return pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        dataset,
        method=method,
        budget=Budget(**{**budget, **settings.pop("budget", {})}),
        seed=1,
        deterministic=True,
        **{"loss": SQUARED, **settings},
    )


def first_batch(run: pl.Private) -> PrivateBatch:
    return next(iter(run))


def asked(method: Method, run: pl.Private) -> Query:
    """The first question of a step, with its value: the release before the noise."""
    return next(method.step(first_batch(run)))


def flat(values: Any) -> Tensor:
    return torch.cat([value.detach().flatten() for value in values.values()])


class TwoSamples(nn.Module):
    """``(w - s)^2`` on the samples 1 and -3, whose sum is least at w = -1 (section 3.1)."""

    samples = torch.tensor([[1.0], [-3.0]], dtype=torch.float64)

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, samples: Tensor) -> Tensor:
        return (self.w - samples).square().sum(1)

    @classmethod
    def run(cls, method: Method, sigma: float = 1.0) -> pl.Private:
        loss = pl.batch_loss(lambda model, batch: model(batch[0]))
        budget = {"noise_multiplier": sigma, "delta": 0.01}
        return private(method, cls(), (cls.samples,), loss=loss, budget=budget)


def test_two_samples_cancel_under_normalisation() -> None:
    """Section 3.1: gradients -2 and 6 at w = 0, of which the normalised ones add up to nothing."""
    run = TwoSamples.run(pl.methods.nonprivate())
    gradients = next(first_batch(run).chunks()).capture()
    assert gradients.materialise()["w"].flatten().tolist() == [-2, 6]
    assert float(asked(pl.methods.nonprivate(), run).value["w"]) == 4
    normalised = float(asked(pl.methods.normalised(), run).value["w"])
    assert normalised == pytest.approx(0, abs=1e-12)
    # Flat clipping at 1 does the same to them; beyond both norms it leaves the true gradient.
    assert float(asked(pl.methods.dpsgd(clip=1.0), run).value["w"]) == pytest.approx(0, abs=1e-12)
    assert float(asked(pl.methods.dpsgd(clip=5.0), run).value["w"]) == pytest.approx(3)
    assert float(asked(pl.methods.dpsgd(clip=10.0), run).value["w"]) == pytest.approx(4)


@pytest.mark.parametrize(
    ("method", "moves"),
    [
        pytest.param(pl.methods.normalised(), False, id="normalised"),
        pytest.param(pl.methods.dpsgd(clip=10.0), True, id="flat at 10"),
    ],
)
def test_two_samples_stay_where_they_are_under_normalisation(method: Method, moves: bool) -> None:
    run = TwoSamples.run(method, sigma=1e-6)
    for batch in run:
        run.step(batch)
    # Three steps of 0.1 on the mean gradient 2 (w + 1), from 0.
    expected = 0.8**3 - 1 if moves else 0.0
    assert float(run.model.w.detach()) == pytest.approx(expected, abs=1e-5)


def test_bams_ascent_form_approaches_its_exact_form_with_the_square_of_the_radius() -> None:
    """Paper 000: Eq. 14 is Eq. 13 up to second order in lambda, for each record and in the sum."""
    run = private(pl.methods.dpsgd(), network(), data())
    batch = first_batch(run)
    chunk = next(batch.chunks())
    radii = [0.4 / 2**halved for halved in range(6)]
    apart, summed = [], []
    for radius in radii:
        # A bound that no gradient reaches: clipping would hide what BAM does to long ones.
        ascent, exact = (
            make(clip=1e6, radius=radius) for make in (pl.methods.bam, pl.methods.bam_exact)
        )
        own, other = (method.evaluation[0].gradients(chunk) for method in (ascent, exact))
        rows = [
            torch.cat([part.flatten(1) for part in gradients.materialise().values()], 1)
            for gradients in (own, other)
        ]
        apart.append((rows[0] - rows[1]).norm(dim=1))
        summed.append((flat(asked(ascent, run).value) - flat(asked(exact, run).value)).norm())
    distances = torch.cat([torch.stack(apart), torch.stack(summed)[:, None]], 1)
    assert bool((distances[-1] > 1e-9).all())  # far above rounding: the order is that of the forms
    logs = torch.tensor(radii, dtype=torch.float64).log()
    centred = (logs - logs.mean()) / (logs - logs.mean()).square().sum()
    slopes = centred @ distances.log()
    assert bool(((slopes - 2).abs() < 0.1).all())
    ratios = distances[-2] / distances[-1]
    assert bool(((ratios - 4).abs() < 0.1).all())


def test_the_mean_of_many_noisy_releases_is_the_clipped_mean() -> None:
    """Paper 000, Lemma 1: noise adds nothing to the bias of clipping."""
    clip, sigma, releases = 0.5, 1.5, 1000
    method = pl.methods.dpsgd(clip=clip)
    run = private(method, network(), data())
    query = next(method.step(first_batch(run)))
    query = Query(value=query.value, sensitivity=query.sensitivity, sigma=sigma)
    clipped = flat(query.value)
    answers = Answers(SeededSource(3), len(clipped), steps=0)
    declared = method.queries(sigma)
    total = torch.zeros_like(clipped)
    for step in range(releases):
        total += flat(answers.answer(query, declared, step, 0))
    error = sigma * clip / releases**0.5
    standard = (total / releases - clipped) / error
    # The squares of d standard Gaussians have the mean d and the deviation sqrt(2 d).
    size = len(clipped)
    assert abs(float(standard.square().sum()) - size) < 4 * (2 * size) ** 0.5
    assert float(standard.abs().max()) < 4.5
    # So Bias(private, true) is Bias(clipped, true), which is far from nothing.
    true = flat(asked(pl.methods.nonprivate(), run).value)
    bias = clipped - true
    assert float(bias.norm()) > 20 * error * size**0.5
    assert float((total / releases - true - bias).norm() / bias.norm()) < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_the_bias_aware_objective_is_above_the_gradient_norm_penalty(seed: int) -> None:
    """Paper 000, Lemma 3: ``L + lambda mean |g_i|`` (Eq. 9), ``L + lambda |mean g_i|`` (Eq. 15)."""
    x, y = data(20)
    model, penalty = network(seed), 0.3
    found = capture(model, lambda model, one: SQUARED(model(one[0]), one[1]).mean(1), (x, y))
    loss = found.losses.mean()
    aware = loss + penalty * found.norms().mean()
    penalised = loss + penalty * flat(found.sum()).norm() / 20
    assert aware > penalised + 0.01
    # With equality when all records are the same one.
    same = found.select(torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(same.norms().mean(), flat(same.sum()).norm() / 20)


def released(method: Method, sigma: float, sampling: Sampling) -> StepRelease:
    return StepRelease(
        sampling=sampling, queries=method.queries(sigma), composition=method.composition
    )


@pytest.mark.parametrize("budget", [1.0, 3.0])
def test_dp_sam_needs_the_root_of_two_times_the_noise(budget: float) -> None:
    """Not 2.06 times, as paper 002 concludes from Theorem 4.1: two questions on the same batch.

    q = 1/25 and T = 750 are its CIFAR-10 setting, delta 1e-5.
    """
    asked = Budget(epsilon=budget, delta=1e-5, steps=750, sampling_rate=1 / 25)
    noise = []
    for method in (pl.methods.dp_sam(), pl.methods.dpsgd()):
        plan = asked.resolve(
            50_000, release_at=lambda sigma, how, method=method: released(method, sigma, how)
        )
        noise.append(plan.noise_multiplier)
    assert noise[0] / noise[1] == pytest.approx(1.414, abs=0.005)


def test_the_papers_accounting_of_dp_sam_keeps_to_the_budget_too() -> None:
    """Theorem 4.1 alone would choose noise that costs 10.37 of an epsilon of 8."""
    asked = Budget(epsilon=8, delta=1e-5, epochs=20, expected_batch_size=600)
    exact, paper = (
        asked.resolve(
            60_000, release_at=lambda sigma, how, method=method: released(method, sigma, how)
        )
        for method in (pl.methods.dp_sam(), pl.methods.dp_sam(accounting="paper"))
    )
    joint = dataclasses.replace(paper.release, composition="joint")
    assert epsilon([(joint, paper.steps)], delta=1e-5) <= 8
    assert paper.noise_multiplier == exact.noise_multiplier


@pytest.mark.parametrize(
    ("method", "rate", "steps", "sigma", "expected"),
    [
        pytest.param(pl.methods.global_adapt(), 92, 1840, 1.0, 3.444, id="Global-Adapt, Adult"),
        pytest.param(pl.methods.dpsgd_f(), 92, 1840, 1.0, 3.444, id="DPSGD-F, Adult"),
        pytest.param(pl.methods.global_adapt(), 214, 12840, 0.8, 5.951, id="Global-Adapt, MNIST"),
        pytest.param(
            pl.methods.dpsgd_f(count_ratio=12.5), 214, 12840, 0.8, 5.951, id="DPSGD-F, MNIST, 10"
        ),
        pytest.param(pl.methods.dpsgd_f(), 214, 12840, 0.8, 5.979, id="DPSGD-F, MNIST, 10 sigma"),
    ],
)
def test_counts_are_charged_with_the_gradient(
    method: Method, rate: int, steps: int, sigma: float, expected: float
) -> None:
    """methods.md A3: RDP at delta 1e-6, counts with a noise of 10 records.

    At DPSGD-F's own ``10 sigma``, which is 8 on MNIST, the counts cost a little more: 5.979.
    """
    release = released(method, sigma, PoissonSampling(rate=1 / rate))
    assert round(epsilon([(release, steps)], delta=1e-6, accountant="rdp"), 3) == expected
