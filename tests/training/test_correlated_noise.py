"""Runs with noise that is correlated between steps."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import plumbline as pl
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.calibration import BudgetError, gradient_only
from plumbline.mechanism.correlated import Correlated
from plumbline.mechanism.ledger import BudgetExceeded, NoiseReuse
from plumbline.mechanism.noise import gaussian
from plumbline.mechanism.random_source import SeededSource
from plumbline.mechanism.release import CyclicSampling, PoissonSampling
from plumbline.training.answering import Answers
from plumbline.training.checkpoint import CheckpointMismatch
from plumbline.training.checkpoint_file import CheckpointError
from plumbline.training.setup import Setup
from tests.training import small
from tests.training.ranks import in_ranks, values, warm
from tests.training.runs import Run, charged, records, weights

BANDS = 3
NOISE = pl.noise.banded(bands=BANDS)


def batches(private: pl.Private) -> list[Tensor]:
    """The records of every step, as the sampler draws them."""
    return [private._sampler.indices(step) for step in range(private.plan.steps)]


@pytest.mark.parametrize("given", [None, pl.noise.banded(1), pl.noise.banded(1, momentum=0.9)])
def test_one_band_is_independent_noise_bit_for_bit(given: Any) -> None:
    plain, same = small.private(), small.private(noise=given)
    small.run(plain)
    small.run(same)
    assert same.run == plain.run
    assert torch.equal(small.weights(same.model), small.weights(plain.model))
    assert same.plan.release == plain.plan.release


def test_the_release_is_the_decoded_row() -> None:
    """Against the definition: exact sums of two methods without noise, and C^-1 W."""
    source = SeededSource(5)
    numel, bands = 7, NOISE.coefficients(4)
    answers = Answers(source, numel, steps=0, bands=bands)
    asked = gradient_only(2.0, PoissonSampling(rate=0.1)).queries
    sums = torch.randn(4, numel, dtype=torch.float64)
    found = []
    for step, value in enumerate(sums):
        query = pl.mechanism.Query(value={"w": value}, sensitivity=1.5, sigma=2.0)
        found.append(answers.answer(query, asked, step, 0)["w"])
    noise = torch.stack([gaussian(source.stream("noise", step), numel) for step in range(4)])
    c = torch.zeros(4, 4, dtype=torch.float64)
    for row in range(4):
        for k in range(min(row + 1, BANDS)):
            c[row, row - k] = bands[k]
    wanted = sums + 3.0 * torch.linalg.solve_triangular(c, noise, upper=False)
    torch.testing.assert_close(torch.stack(found), wanted, rtol=1e-6, atol=1e-6)


def test_only_the_gradient_is_correlated() -> None:
    source = SeededSource(5)
    answers = Answers(source, 4, steps=0, bands=NOISE.coefficients(4))
    queries = pl.methods.dp_sam(clip=1.0).queries(2.0)
    assert [one.name for one in queries][1] == "gradient"
    for step in range(3):
        for place, one in enumerate(queries):
            query = pl.mechanism.Query(
                value=torch.zeros(4).double(), sensitivity=1.0, sigma=2.0, name=one.name
            )
            answer = answers.answer(query, queries, step, place)["value"]
            if place == 0:
                own = 2.0 * gaussian(source.stream("noise", step, 0), 4)
                torch.testing.assert_close(answer, own, rtol=1e-6, atol=1e-6)


def test_a_run_charges_participations_and_says_so(tmp_path: Path) -> None:
    budget = small.budget(epsilon=8.0, noise_multiplier=None, steps=10, expected_batch_size=8)
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        private = small.private(noise=NOISE, seed=None, ledger=ledger, plan=budget)
        assert private.plan.release.sampling == CyclicSampling(rate=24 / 40, parts=3)
        small.run(private)
    step = gradient_only(private.plan.noise_multiplier, PoissonSampling(rate=24 / 40))
    wanted = epsilon([(step, 4)], delta=budget.delta)
    assert private.epsilon(exact=True) == wanted == private.plan.epsilon <= 8
    assert pl.Ledger.read(tmp_path / "ledger").epsilon(budget.delta) == wanted


@pytest.mark.parametrize("users", [None, torch.arange(small.RECORDS) // 2])
def test_no_unit_takes_part_twice_within_the_bands(users: Tensor | None) -> None:
    private = small.private(
        noise=NOISE, user_ids=users, plan=small.budget(steps=30, expected_batch_size=5)
    )
    taken = torch.zeros(30, private.units)
    for step, units in enumerate(batches(private)):
        taken[step, units] = 1
    assert taken.sum() > 80
    for units in taken.T:
        steps = units.nonzero()[:, 0]
        assert bool((steps.diff() % BANDS == 0).all())


def test_a_single_epoch_takes_each_record_once() -> None:
    private = small.private(
        noise=pl.noise.banded(3, parts=8), plan=small.budget(steps=8, expected_batch_size=5)
    )
    assert private.plan.release.sampling == CyclicSampling(rate=1.0, parts=8)
    assert torch.equal(torch.cat(batches(private)).sort().values, torch.arange(small.RECORDS))
    one = gradient_only(1.0, PoissonSampling(rate=1.0))
    assert private.plan.epsilon == epsilon([(one, 1)], delta=1e-3)


# What is refused, with nothing charged.


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"noise": pl.noise.banded(5)}, "more than the run's steps, 4"),
        ({"noise": pl.noise.banded(4), "plan": small.budget(expected_batch_size=20)}, "at most 2"),
        ({"method": pl.methods.adaptive()}, "changes along the run"),
        ({"method": pl.methods.clipped_only()}, "has no guarantee"),
        ({"method": pl.methods.dp_sam(clip=0.5, accounting="paper")}, "basic composition"),
        ({"relation": "replace_one"}, "not replace_one"),
        ({"noise": 3}, "plumbline.noise.banded"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with (
        pl.Ledger.open(tmp_path / "ledger") as ledger,
        pytest.raises((BudgetError, ValueError, TypeError), match=problem),
    ):
        small.private(**{"noise": NOISE, "ledger": ledger, **change})
    assert charged(tmp_path / "ledger") == 0


def test_a_sampler_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from plumbline.sampling import PoissonSampler

    def plain(self: Setup, rate: float, source: Any, parts: Any) -> PoissonSampler:
        return PoissonSampler(self.units, rate, source)

    monkeypatch.setattr(Setup, "sampler", plain)
    with pytest.raises(ValueError, match="The sampler draws batches by PoissonSampling"):
        small.private(noise=NOISE)


def test_bands_beyond_the_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setup, "bands", lambda *_: (0.5, 0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match=r"correlated over 4 steps.*one of 3"):
        small.private(noise=NOISE)


# Going on.


def correlated(**settings: Any) -> Run:
    return Run("sgd", {"noise": NOISE, **settings})


def parts_of(private: pl.Private) -> list[int]:
    assert private._sampler._part is not None
    return private._sampler._part.tolist()


def test_a_secure_run_goes_on_with_its_parts_and_a_new_block(tmp_path: Path) -> None:
    path, own = tmp_path / "checkpoint", tmp_path / "checkpoint.PRIVATE"
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        run = correlated(ledger=ledger)
        first = run.make(checkpoint=path)
        run.train(first, 5)
        key = bytes.fromhex(first.private_state_dict()["parts"])
        assert key not in path.read_bytes()
        assert key.hex().encode() not in path.read_bytes()
        assert key.hex().encode() in own.read_bytes()
        assert own.stat().st_mode & 0o077 == 0
        again = correlated(ledger=ledger)
        second = again.make(checkpoint=path)
        assert parts_of(second) == parts_of(first)
        assert second.steps_done == 5
        assert torch.equal(weights(again.model), weights(run.model))
        assert not second._answering().follows(5)
        again.train(second)
    delta = second.plan.delta
    assert charged(tmp_path / "ledger") == 12
    assert pl.Ledger.read(tmp_path / "ledger").epsilon(delta) == second.plan.epsilon


def test_a_step_that_two_copies_of_a_run_make_is_paid_for_by_its_budget(tmp_path: Path) -> None:
    """Both draw the records of the same part: the statement must not count them as two parts."""
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        first = correlated(ledger=ledger).make(checkpoint=tmp_path / "checkpoint")
        for name in ("checkpoint", "checkpoint.PRIVATE"):
            shutil.copy(tmp_path / name, tmp_path / name.replace("checkpoint", "copy"))
        second = correlated(ledger=ledger).make(checkpoint=tmp_path / "copy")
        for private in (first, second, first):
            private.step(private.draw())
        delta = first.plan.delta
        for private in (first, second):
            assert private.epsilon(exact=True) == ledger.epsilon(delta)
        for private in (second, first, second):
            private.step(private.draw())
        batch = first.draw()
        with pytest.raises(BudgetExceeded, match="copy of the run"):
            first.step(batch)
        assert ledger.epsilon(delta) <= first.plan.epsilon


def test_without_the_parts_it_does_not_go_on(tmp_path: Path) -> None:
    run = correlated()
    run.train(run.make(checkpoint=tmp_path / "checkpoint"), 2)
    (tmp_path / "checkpoint.PRIVATE").unlink()
    with pytest.raises(CheckpointError, match="PRIVATE"):
        correlated().make(checkpoint=tmp_path / "checkpoint")


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("shuffled", ["records", "users"])
def test_records_in_another_order_do_not_go_on(
    shuffled: str, seed: int | None, tmp_path: Path
) -> None:
    """A record would have another part, and its turn a second time."""
    users = list(range(len(records()[0])))
    settings: dict[str, Any] = {
        "seed": seed,
        **({"user_ids": users} if shuffled == "users" else {}),
    }
    changed: dict[str, Any] = {"dataset": tuple(one.flip(0) for one in records())}
    if shuffled == "users":
        changed = {"user_ids": users[::-1]}
    path = tmp_path / "checkpoint"
    run = correlated(**settings)
    run.train(run.make(checkpoint=path), 2)
    correlated(**settings).resume(path).close()
    with pytest.raises(CheckpointMismatch, match="records are in another order"):
        correlated(**{**settings, **changed}).resume(path)


def test_no_exact_sum_is_stored(tmp_path: Path) -> None:
    run = correlated()
    private = run.make(checkpoint=tmp_path / "checkpoint")
    run_answers = private._answering()
    for batch in private:
        private.step(batch)
        private.save()
        if private.steps_done == 3:
            break
    assert run_answers._correlated is not None
    sums = run_answers._correlated._sums.vectors[:3]
    assert bool(sums.any(1).all())
    stored = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    for row in sums:
        assert row.numpy().tobytes()[:32] not in stored
        assert row.float().numpy().tobytes()[:16] not in stored
    private.close()


def test_a_step_that_fails_after_its_charge_begins_a_new_block() -> None:
    private = small.private(noise=NOISE, plan=small.budget(steps=8), seed=None)
    for batch in private:
        if batch.step == 3:
            answering, private._answers = private._answers, _Failing()  # type: ignore[assignment]
            with pytest.raises(RuntimeError, match="after the charge"):
                private.step(batch)
            private._answers = answering
            assert private.steps_done == 4
            assert not private._answering().follows(4)
            break
        private.step(batch)
    for batch in private:
        private.step(batch)
        assert private._answering().follows(batch.step + 1)
    assert private.lost == 1
    assert private.charged == 8


class _Failing:
    def follows(self, step: int) -> bool:
        return True

    def answer(self, *_: Any) -> None:
        raise RuntimeError("after the charge")


def test_a_seeded_run_is_recognised_but_not_made_again_from_the_middle(tmp_path: Path) -> None:
    """The noise of a step is never added to another row than the one it was added to."""
    settings: dict[str, Any] = {"noise": NOISE, "plan": small.budget(steps=6)}
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        first = small.private(ledger=ledger, **settings)
        assert not first.setup.repeatable
        small.run(first)
        again = small.private(ledger=ledger, **settings)
        small.run(again)
        assert torch.equal(small.weights(again.model), small.weights(first.model))
        assert charged(tmp_path / "ledger") == 6  # from its beginning, it is a replay
        broken = small.private(ledger=ledger, **settings)
        for batch in broken:
            if batch.step == 3:
                broken.close()  # what it remembers is gone, as after a crash
                with pytest.raises(NoiseReuse):
                    broken.step(batch)
                break
            broken.step(batch)
    assert charged(tmp_path / "ledger") == 6


def test_a_seeded_run_with_other_bands_does_not_use_its_noise_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those that another version of scipy finds: two rows would differ by exact sums."""
    settings: dict[str, Any] = {"noise": NOISE, "plan": small.budget(steps=6)}
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        small.run(small.private(ledger=ledger, **settings))
        own = Setup.bands
        monkeypatch.setattr(
            Setup, "bands", lambda *given: tuple(0.999999 * one for one in own(*given))
        )
        again = small.private(ledger=ledger, **settings)
        batch = again.draw()
        with pytest.raises(NoiseReuse):
            again.step(batch)


def test_a_seeded_run_goes_on_with_new_noise(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run = correlated(seed=3, deterministic=True)
    first = run.make(checkpoint=path)
    run.train(first, 5)
    again = correlated(seed=3, deterministic=True)
    second = again.make(checkpoint=path)
    assert second.attempt != first.attempt
    assert parts_of(second) == parts_of(first)
    assert second.steps_done == 5


def test_two_processes_correlate_their_shares(tmp_path: Path) -> None:
    """Their releases agree, and without the noise both are the sums of one process."""
    warm()

    def work(rank: int) -> Any:
        private = small.private(
            noise=NOISE,
            plan=small.budget(noise_multiplier=1e-4, steps=6),
            method=pl.methods.dpsgd(clip=0.5),
        )
        small.run(private)
        return small.weights(private.model)

    both = values(in_ranks(2, work, tmp_path))
    assert torch.equal(both[0], both[1])
    torch.testing.assert_close(both[0], work(0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["bam", "global_adapt", "dp_sam", "dp_sat"])
def test_it_composes_with_methods(method: str) -> None:
    private = small.private(
        noise=NOISE, method=pl.methods.find(method).make(), plan=small.budget(steps=5)
    )
    small.run(private)
    assert private.made == 5
    assert bool(torch.isfinite(small.weights(private.model)).all())


def test_the_data_are_not_looked_at_when_parts_are_drawn() -> None:
    inputs, targets = records()
    one = correlated(seed=1).make()
    other = correlated(seed=1, dataset=(inputs.flip(0) * 7, 1 - targets)).make()
    assert parts_of(one) == parts_of(other)
    assert re.match(r"[0-9a-f-]+", one.run)


def test_the_noise_covers_the_rounding_of_all_rows() -> None:
    """Of one row, of b rows, and of mixing them: the standard deviation is wider by each."""
    from plumbline.gradients.summation import MOST_RECORDS
    from plumbline.mechanism.correlated import mixing_sensitivity
    from plumbline.mechanism.noise import rounding_sensitivity

    numel, sigma = 1_000_000, 1.0
    source, bands = SeededSource(5), NOISE.coefficients(4)
    answers = Answers(source, numel, steps=0, bands=bands)
    asked = gradient_only(sigma, PoissonSampling(rate=0.1)).queries
    query = pl.mechanism.Query(value=torch.zeros(numel).double(), sensitivity=1.0, sigma=sigma)
    answer = answers.answer(query, asked, 0, 0)["value"]
    exact = gaussian(source.stream("noise", 0), numel)
    large = exact.abs() > 0.1
    wider = float((answer[large] * bands[0] / exact[large]).median()) - 1
    rows = rounding_sensitivity(1.0, BANDS * numel)
    assert wider == pytest.approx(rows + mixing_sensitivity(1.0, BANDS, MOST_RECORDS), rel=1e-3)
    assert rows > 0.1 * wider  # so that counting a single row would show


@pytest.mark.parametrize("method", ["dpsgd", "automatic", "per_layer", "bam", "averaged"])
def test_one_record_moves_the_rows_of_its_window_by_no_more_than_its_bound(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact rows of real steps with and without one huge record, at weights that stay the same."""

    def rows(count: int) -> tuple[Tensor, pl.Private]:
        found: list[Tensor] = []

        def row(self: Correlated, *given: Any) -> dict[str, Tensor]:
            made = mixed(self, *given)
            found.append(made["row"].clone())
            return made

        x, y = small.data(7)
        x[-1] *= 1e3
        with monkeypatch.context() as patch:
            patch.setattr(Correlated, "row", row)
            private = small.private(
                dataset=(x[:count], y[:count]),
                noise=NOISE,
                method=pl.methods.find(method).make(),
                plan=pl.Budget(
                    noise_multiplier=1.0, delta=1e-3, steps=9, sampling_rate=1 / 3, records=6
                ),
                lr=0.0,
            )
            small.run(private)
        return torch.stack(found), private

    mixed = Correlated.row
    (with_it, private), (without, _) = rows(7), rows(6)
    bound = private.method.clipping.sensitivity * (1 + 2e-4)
    part = parts_of(private)[-1]
    moved = (with_it - without).norm(dim=1)
    assert not moved[:part].any()
    for start in range(part, 9, BANDS):
        window = moved[start : start + BANDS]
        assert 0.1 * bound < float(window.norm()) <= bound
