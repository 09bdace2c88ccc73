"""The probe measures what the run clips: the sum that the method's own step asks for."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Averaged, Flat, GroupBatchNorm
from plumbline.diagnostics import bias, norms, sample_of
from plumbline.evaluation import Bam, DpSam, PreClipNoise
from plumbline.methods import Method, compose
from plumbline.methods.base import GRADIENT
from plumbline.record_random import Draws
from tests.training.small import RECORDS, budget, gradient_of, private

CLIP = 0.3


def turned(rows: Tensor, draws: Draws) -> Tensor:
    """A view: the inputs moved by a number of each row's own."""
    return rows + draws.uniform(1) - 0.5


METHODS: dict[str, Callable[[], Method]] = {
    "dpsgd": lambda: pl.methods.dpsgd(clip=CLIP),
    "global_adapt": lambda: pl.methods.global_adapt(clip=CLIP, initial=2.0),
    "per_layer": lambda: pl.methods.per_layer(clip=CLIP),
    "bam": lambda: pl.methods.bam(clip=CLIP, radius=0.5),
    "bam_exact, in chunks": lambda: compose(
        evaluation=pl.evaluation.BamExact(0.5, limit=4), clipping=Flat(CLIP)
    ),
    "dp_sat": lambda: pl.methods.dp_sat(clip=CLIP, radius=0.5),
    "views": lambda: pl.methods.self_augmented(augment=turned, views=3, clip=CLIP),
    "inner momentum": lambda: pl.methods.inner_outer(clip=CLIP, inner=0.7),
    "pre-clip noise": lambda: pl.methods.pre_clip_noise(clip=CLIP, scale=0.2),
    "sam without noise": lambda: compose(
        evaluation=DpSam(0.5), clipping=Flat(CLIP), noisy=False, name="sam"
    ),
    "views at BAM's weights, with noise": lambda: compose(
        evaluation=[pl.evaluation.Views(turned, 2), Bam(0.5), PreClipNoise(0.1)],
        clipping=Flat(CLIP),
    ),
}

FULL: dict[str, Callable[[], Method]] = {
    "averaging": lambda: pl.methods.averaged(clip=CLIP, size=4),
    "BAM in buckets": lambda: compose(evaluation=Bam(0.5), clipping=Averaged(CLIP, 5)),
    "record momentum": lambda: pl.methods.dp_gd_momentum(clip=CLIP),
}
"""Methods that are compared on full batches: buckets are as many as the expected size wants."""


def after(method: Method, steps: int = 3, **settings: Any) -> pl.Private:
    """A run with some steps behind it."""
    run = private(method=method, plan=budget(steps=steps + 2, **settings))
    for _ in range(steps):
        run.step(next(iter(run)))
    return run


def asked(run: pl.Private, batch: Any) -> dict[str, Tensor]:
    """The un-noised clipped sum that a step on the batch asks for."""
    program = copy.deepcopy(run.method).step(batch)
    query = next(program)
    while query.name != GRADIENT:
        query = program.send(dict(query.value))
    return query.value


def assert_asked(run: pl.Private) -> None:
    batch = next(iter(run))
    assert len(batch) > 2
    sample = sample_of(run, batch.unit_ids)
    constant = sample.clipping.normaliser(len(batch))
    for name, expected in asked(run, batch).items():
        found = sample.clipped_mean[name] * constant
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_the_clipped_mean_is_what_the_methods_own_step_asks_for(name: str) -> None:
    assert_asked(after(METHODS[name]()))


@pytest.mark.parametrize("name", FULL)
def test_the_same_on_full_batches(name: str) -> None:
    assert_asked(after(FULL[name](), expected_batch_size=RECORDS))


def test_fairlens_is_measured_with_its_regulariser() -> None:
    groups = torch.arange(RECORDS) % 2
    run = private(method=pl.methods.fairlens(clip=CLIP), sensitive_features=groups)
    run.step(next(iter(run)))
    assert_asked(run)


def test_users_are_the_units_where_the_run_protects_users() -> None:
    users = torch.arange(RECORDS) // 4
    run = private(user_ids=users, plan=budget(expected_batch_size=5))
    assert run.units == 10
    chosen = torch.tensor([1, 3, 8])
    sample = sample_of(run, chosen)
    assert sample.records == 3
    x, y = run.fetch(torch.arange(RECORDS))
    for place, user in enumerate(chosen.tolist()):
        expected = gradient_of(run.model, x[users == user], y[users == user])
        assert float(sample.norms[place]) == pytest.approx(float(expected.norm()), rel=1e-4)


@pytest.mark.parametrize("name", ["bam", "views", "inner momentum", "pre-clip noise"])
def test_the_plain_gradient_is_that_of_the_losses_at_the_weights(name: str) -> None:
    run = after(METHODS[name]())
    chosen = torch.arange(0, RECORDS, 3)
    sample = sample_of(run, chosen)
    expected = gradient_of(run.model, *run.fetch(chosen)) / len(chosen)
    found = torch.cat([value.flatten() for value in sample.plain.mean.values()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    clipped = torch.cat([value.flatten() for value in sample.clipped_mean.values()])
    assert bias(sample).norm == pytest.approx(float((clipped - expected).norm()), rel=1e-4)
    assert sample.plain is not sample
    assert float((sample.norms - sample.plain.norms).abs().max()) > 1e-3


def test_plain_methods_have_one_gradient() -> None:
    sample = sample_of(after(METHODS["dpsgd"]()), torch.arange(9))
    assert sample.plain is sample


def test_a_group_of_a_run_that_averages_has_buckets_of_its_own() -> None:
    run = after(FULL["averaging"](), expected_batch_size=RECORDS)
    sample = sample_of(run, torch.arange(RECORDS))
    assert sample.drawn == RECORDS
    assert sample.records <= RECORDS // 4
    assert sample.groups is None
    some = torch.arange(RECORDS) % 2 == 0
    part = sample.of(some)
    assert part.drawn == RECORDS // 2
    assert part.records <= RECORDS // 8
    assert part.plain.records == RECORDS // 2
    expected = gradient_of(run.model, *run.fetch(some.nonzero()[:, 0])) / (RECORDS // 2)
    found = torch.cat([value.flatten() for value in part.plain.mean.values()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_batch_norm_over_buckets_keeps_them_in_the_plain_gradient() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
    method = compose(clipping=GroupBatchNorm(1e6, 4), noisy=False, name="wide")
    run = private(model, method=method, plan=budget(expected_batch_size=RECORDS))
    sample = sample_of(run, torch.arange(RECORDS))
    # Nothing is clipped at this bound: what is released is the mean over the same buckets.
    found = bias(sample)
    assert found.relative == pytest.approx(0, abs=1e-5)
    assert found.gradient_norm > 0.01
    assert norms(sample).clipped == 0


def test_a_first_noisy_answer_has_the_runs_noise_and_not_its_source() -> None:
    loud = after(pl.methods.dp_sam(clip=CLIP, radius=0.5), noise_multiplier=50.0)
    chosen = torch.arange(RECORDS)
    first, again, other = (sample_of(loud, chosen, seed).norms for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert float((first - other).abs().max()) > 1e-3


@pytest.mark.parametrize("name", [*METHODS, "averaging", "dropout"])
def test_no_trace_stays(name: str) -> None:
    def weights(looking: bool) -> list[Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            middle = nn.Dropout(0.5) if name == "dropout" else nn.Identity()
            model = nn.Sequential(nn.Linear(6, 5), middle, nn.Tanh(), nn.Linear(5, 2))
        method = {**METHODS, **FULL, "dropout": METHODS["dpsgd"]}[name]()
        run = private(model, method=method)
        for batch in run:
            if looking:
                before = _state(run)
                sample = sample_of(run, torch.arange(12))
                assert sample.clipped_mean
                assert _state(run) == before
            run.step(batch)
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(True), weights(False), strict=True))


def _state(run: pl.Private) -> list[Any]:
    numpy = np.random.get_state()  # noqa: NPY002
    modes = [module.training for module in run.model.modules()]
    grads = [p.grad is None for p in run.model.parameters()]
    return [torch.get_rng_state().tolist(), random.getstate(), list(numpy[1]), modes, grads]


def test_a_batch_to_look_at_cannot_be_stepped_on() -> None:
    run = private()
    with pytest.raises(pl.training.private.BatchRefused, match="not drawn"):
        run.step(run.batch_of(torch.arange(5)))
    assert run.steps_done == 0
