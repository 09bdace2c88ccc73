"""Momentum before and after clipping: how many iterates, whose momenta, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import InnerMomentum, OuterMomentum, RecordMomentum
from tests.methods.literal import CLIP, close, flat, prepare, train
from tests.methods.test_references_evaluation import FEW, full_batches


def without_noise(*rules: Any) -> pl.methods.Method:
    return pl.methods.compose(evaluation=rules, clipping=Flat(CLIP), noisy=False)


def test_the_last_iterates_are_kept_the_latest_first() -> None:
    """Paper 003, Eq. 13: K0 past ones beside the present; at the start, those that exist."""
    run = train(without_noise(InnerMomentum(2, 0.3)))
    iterates = [flat(run.start.parameters()), *run.weights]
    for step, state in enumerate(run.states):
        kept = iterates[: step + 1][::-1][:2]
        assert len(state["iterates"]) == len(kept)
        for found, expected in zip(state["iterates"], kept, strict=True):
            assert torch.equal(found, expected)


def test_an_inner_momentum_that_forgets_at_once_is_the_plain_gradient() -> None:
    found, plain = train(without_noise(InnerMomentum(3, 0.0))), train(without_noise())
    close(found.updates, plain.updates)


def test_the_inner_momentum_is_not_renormalised() -> None:
    """methods.md, C: at rest, K0 + 1 equal gradients add up to (1 + gamma + gamma^2) of one."""
    private = prepare(
        pl.methods.compose(
            evaluation=InnerMomentum(2, 0.5), clipping=Flat(1e6), noisy=False, name="inner"
        ),
        **full_batches(),
    )
    private.optimizer.param_groups[0]["lr"] = 0.0
    for batch in private:
        private.step(batch)
    private.close()
    first, second, third, *_ = private.optimizer.given
    close(second, 1.5 * first)
    close(third, 1.75 * first)


def test_the_outer_momentum_is_that_of_sgd() -> None:
    """Paper 003, Eq. 14 with beta for 1 - gamma1: what torch's optimizer does by itself."""
    found = train(without_noise(OuterMomentum(0.9)))
    plain = pl.methods.clipped_only(CLIP)
    private = prepare(plain)
    private.optimizer.param_groups[0]["momentum"] = 0.9
    for batch in private:
        private.step(batch)
    private.close()
    close(found.weights[-1], flat(private.model.parameters()))


def test_a_rate_of_one_remembers_nothing() -> None:
    found = train(without_noise(RecordMomentum(1.0)), **full_batches())
    plain = train(without_noise(), **full_batches())
    close(found.updates, plain.updates)


def test_the_momenta_of_records_need_full_batches() -> None:
    """Paper 003, Alg. 1; refused before anything is charged."""
    private = prepare(pl.methods.dp_gd_momentum())
    batch = next(iter(private))
    with pytest.raises(ValueError, match=r"sampling rate is 0\.2.*full batches.*inner_outer"):
        private.step(batch)
    assert (private.steps_done, private.charged) == (0, 0)


def test_the_momenta_are_nobodys_but_the_private_files() -> None:
    run = train(pl.methods.dp_gd_momentum(0.3), **full_batches())
    method = run.private.method
    assert method.state_dict() == {"evaluation": [{}], "clipping": {}}
    momenta = method.private_state_dict()["0"]["momenta"]
    assert {len(value) for value in momenta.values()} == {FEW}
    assert "momenta" not in repr(method.evaluation[0])


def test_momenta_in_chunks_of_any_size_are_the_same() -> None:
    runs = [
        train(pl.methods.dp_gd_momentum(0.3), max_physical_batch=most, **full_batches())
        for most in (None, 1, 2, 5)
    ]
    for run in runs[1:]:
        close(run.updates, runs[0].updates)
        close(run.states, runs[0].states)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InnerMomentum(length=0), "length is 0; it must be a whole number of at least 1"),
        (lambda: InnerMomentum(decay=1.0), "decay is 1.0; it must be at least 0 and below 1"),
        (lambda: OuterMomentum(-0.1), "decay is -0.1"),
        (lambda: RecordMomentum(0.0), "rate is 0.0; it must be above 0 and at most 1"),
        (lambda: RecordMomentum(1.1), "rate is 1.1"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
