"""Private means and variances: what they are, what moves them, what they cost."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients.summation import ROUNDING
from plumbline.mechanism import accountant
from plumbline.mechanism.calibration import BudgetError
from plumbline.mechanism.ledger import Ledger, LedgerError, NoiseReuse
from plumbline.mechanism.release import FullBatch, Query, StepRelease
from plumbline.training import CheckpointMismatch, moments
from plumbline.training.full_batch_queries import Asked, ask
from plumbline.training.moments import Moments, mean_release, private_mean, private_moments
from tests.training.small import LOSS, budget, data, network, private, run

QUIET: dict[str, Any] = {"noise_multiplier": 1e-9, "bound": 1e3, "square_bound": 1e3}
SETTINGS: dict[str, Any] = {"noise_multiplier": 3.0, "bound": 2.0, "square_bound": 1.0}
NEARLY_FREE: dict[str, Any] = {**SETTINGS, "noise_multiplier": 1e5}


def features(records: int = 60, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.5, 1.0, 2.0, 4.0])[:, None, None]
    return torch.randn(records, 4, 3, 2, generator=generator) * scale + scale


def exact(rows: Tensor, **settings: Any) -> list[Tensor]:
    """The values of the two questions, before the noise."""
    return list(moments._sums(rows, (settings["bound"], settings["square_bound"]), 7))


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_without_clipping_and_noise_they_are_the_moments(chunk: int) -> None:
    x = features()
    found = private_moments(x, **QUIET, chunk=chunk)
    by_channel = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(found.mean.double(), by_channel.mean(1), rtol=1e-6, atol=1e-6)
    variance = by_channel.var(1, correction=0)
    torch.testing.assert_close(found.variance.double(), variance, rtol=1e-5, atol=1e-6)
    assert found.mean.dtype == found.variance.dtype == torch.float32


def test_features_without_positions() -> None:
    x = features()[:, :, 0, 0]
    found = private_moments(x, **QUIET)
    torch.testing.assert_close(found.mean.double(), x.double().mean(0), rtol=1e-6, atol=1e-6)


def test_the_noise_has_the_declared_size_and_is_divided_by_the_public_number() -> None:
    x = torch.zeros(10, 20_000)
    found = private_moments(x, noise_multiplier=3.0, bound=2.0, square_bound=1.0, records=50)
    assert float(found.mean.double().std()) == pytest.approx(3 * 2 / 50, rel=0.05)
    squares = found.variance.double() + found.mean.double().square()
    above = squares[found.variance > 1e-4]  # half of the noise of an empty variance is below zero
    assert float(above.square().mean().sqrt()) == pytest.approx(3 / 50, rel=0.2)


def test_the_noise_covers_the_rounding_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Query] = []

    def noted(kind: str, queries: Sequence[Query], **_: object) -> Asked:
        asked.extend(queries)
        return ask(kind, queries, seed=0, ledger=None)

    monkeypatch.setattr(moments, "ask", noted)
    private_moments(features(), noise_multiplier=1.0, bound=1.0, square_bound=1.0)
    private_mean([features()], records=60, noise_multiplier=1.0, bound=1.0)
    assert [one.rounding for one in asked] == [ROUNDING] * 3
    monkeypatch.setattr(moments, "MOST_RECORDS", 59)
    with pytest.raises(ValueError, match="rounding of a sum is proven"):
        private_moments(features(), noise_multiplier=1.0, bound=1.0, square_bound=1.0)
    with pytest.raises(ValueError, match="rounding of a sum is proven"):
        private_mean([features()], records=60, noise_multiplier=1.0, bound=1.0)


BAD: dict[str, Callable[[Tensor], Tensor]] = {
    "huge": lambda row: row * 1e30,
    "nan": lambda row: torch.full_like(row, float("nan")),
    "infinite": lambda row: torch.full_like(row, float("inf")),
    "zero": torch.zeros_like,
    "negative": lambda row: -50 * row.abs(),
    "one pixel": lambda row: torch.zeros_like(row).index_fill_(1, torch.tensor([0]), 1e6),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("place", [0, 30, 59])
def test_one_record_moves_each_answer_by_at_most_its_bound(name: str, place: int) -> None:
    with_it = features()
    with_it[place] = BAD[name](with_it[place])
    without = torch.cat([with_it[:place], with_it[place + 1 :]])
    for one, other, most in zip(
        exact(with_it, **SETTINGS), exact(without, **SETTINGS), (2.0, 1.0), strict=True
    ):
        assert float((one - other).norm()) <= most * (1 + 1e-9)
    found = private_moments(with_it, **SETTINGS)
    assert torch.isfinite(found.mean).all()
    assert torch.isfinite(found.variance).all()
    assert (found.variance > 0).all()


def test_a_mean_of_every_feature() -> None:
    x = features()
    found = private_mean(x.split(7), records=60, noise_multiplier=1e-9, bound=1e3)
    torch.testing.assert_close(found.double(), x.double().mean(0), rtol=1e-6, atol=1e-6)
    assert found.dtype == torch.float32


def test_its_noise_has_the_declared_size() -> None:
    found = private_mean([torch.zeros(10, 20_000)], records=50, noise_multiplier=3.0, bound=2.0)
    assert float(found.double().std()) == pytest.approx(3 * 2 / 50, rel=0.05)


@pytest.mark.parametrize("name", BAD)
def test_one_record_moves_it_by_at_most_its_bound(name: str) -> None:
    with_it = features()
    with_it[30] = BAD[name](with_it[30])
    without = torch.cat([with_it[:30], with_it[31:]])
    one, other = (
        private_mean([rows], records=60, noise_multiplier=1e-12, bound=2.0).double()
        for rows in (with_it, without)
    )
    assert float((one - other).norm()) * 60 <= 2.0 * (1 + 1e-5)  # the answer is float32


@pytest.mark.parametrize("seed", [None, 3])
def test_its_release_is_known_before(seed: int | None, tmp_path: Path) -> None:
    """And is charged once, also where a ledger reserves steps ahead."""
    with Ledger.open(tmp_path / "ledger", reserve=50) as ledger:
        private_mean(
            [features()], records=60, noise_multiplier=3.0, bound=2.0, seed=seed, ledger=ledger
        )
        release = mean_release(3.0, seeded=seed is not None)
        assert Ledger.read(ledger.path).entries() == [(release.to_dict(), 1)]
        private(before=[release], ledger=ledger)


def test_the_release_says_what_was_asked() -> None:
    release = private_moments(features(), **SETTINGS).release
    assert release.sampling == FullBatch()
    asked = [(q.name, q.sensitivity, q.noise_multiplier) for q in release.queries]
    assert asked == [
        ("the means of the features", 2.0, 3.0),
        ("the mean squares of the features", 1.0, 3.0),
    ]
    assert release.noise_multiplier == pytest.approx(3 / 2**0.5)
    seeded = private_moments(features(), **SETTINGS, seed=3).release
    assert all("noise from a seed" in query.name for query in seeded.queries)


def test_a_seed_repeats_the_noise_and_other_questions_have_other_noise() -> None:
    x = features()
    first, again = private_moments(x, **SETTINGS, seed=3), private_moments(x, **SETTINGS, seed=3)
    assert torch.equal(first.mean, again.mean)
    other = private_moments(x, **{**SETTINGS, "noise_multiplier": 6.0}, seed=3)
    value = exact(x, **SETTINGS)[0] / 60
    noise = first.mean.double() - value, (other.mean.double() - value) / 2
    assert not torch.allclose(*noise, rtol=1e-2)
    secure = [private_moments(x, **SETTINGS).mean for _ in range(2)]
    assert not torch.equal(*secure)


def test_the_two_releases_of_a_run_are_both_counted() -> None:
    found = private_moments(features(), **SETTINGS)
    mine = private(before=[found.release])
    both = [(found.release, 1), (mine.plan.release, 4)]
    for who in ("pld", "rdp"):
        settings: dict[str, Any] = {"delta": 1e-3, "accountant": who}
        alone = accountant.epsilon([(mine.plan.release, 4)], **settings)
        assert accountant.epsilon(both, **settings) > alone
        assert accountant.epsilon(both, **settings) > accountant.epsilon(both[:1], **settings)
    assert mine.plan.epsilon == accountant.epsilon(both, delta=1e-3)
    assert mine.epsilon() == accountant.epsilon(both[:1], delta=1e-3)  # before the first step
    run(mine)
    assert mine.epsilon(exact=True) == mine.epsilon() == mine.plan.epsilon


def test_a_budget_pays_for_both() -> None:
    plan = budget(noise_multiplier=None, epsilon=2.0)
    found = private_moments(features(), **SETTINGS)
    alone, mine = private(plan=plan), private(plan=plan, before=[found.release])
    assert mine.plan.noise_multiplier > alone.plan.noise_multiplier
    assert 0.999 * 2 <= mine.plan.epsilon <= 2
    free = private(plan=plan, before=[private_moments(features(), **NEARLY_FREE).release])
    assert free.plan.noise_multiplier == pytest.approx(alone.plan.noise_multiplier, rel=1e-3)


def test_a_budget_that_is_spent_already_is_refused() -> None:
    found = private_moments(features(), **{**SETTINGS, "noise_multiplier": 0.1})
    with pytest.raises(BudgetError, match="released before training already costs"):
        private(plan=budget(noise_multiplier=None, epsilon=2.0), before=[found.release])


def test_an_earlier_release_without_a_guarantee_leaves_none() -> None:
    release = private_moments(features(), **SETTINGS).release
    silent = replace(release, unbounded_reason="it was published as it is")
    mine = private(before=[silent])
    assert mine.epsilon() == float("inf")
    assert "because it was published as it is" in " ".join(mine.statement().split())
    with pytest.raises(BudgetError, match="already costs inf"):
        private(plan=budget(noise_multiplier=None, epsilon=2.0), before=[silent])


def test_the_statement_has_it() -> None:
    found = private_moments(features(), **SETTINGS)
    mine = private(before=[found.release])
    text = " ".join(mine.statement().split())
    assert "No step has been taken yet" not in text
    assert (
        "Before training, these questions were asked about the data, and epsilon and delta count "
        "them too: the means of the features, with noise of standard deviation 3 times the bound"
    ) in text
    assert "statistics taken from the data before training and not named above, such as" in text
    facts = json.loads(mine.statement("json"))
    assert [StepRelease.from_dict(one) for one in facts["before"]] == [found.release]
    assert facts["epsilon"] == mine.epsilon()
    without = private()
    assert "Before training" not in without.statement()
    assert "not named above" not in without.statement()
    assert "No step has been taken yet" in without.statement()
    assert json.loads(without.statement("json"))["before"] == []


def test_a_ledger_has_both(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        found = private_moments(features(), **SETTINGS, ledger=ledger)
        mine = private(before=[found.release], ledger=ledger)
        run(mine)
        assert ledger.epsilon(1e-3) == mine.epsilon(exact=True)


def test_a_ledger_without_the_earlier_charge_is_refused(tmp_path: Path) -> None:
    found = private_moments(features(), **SETTINGS)
    with Ledger.open(tmp_path / "ledger") as ledger:
        with pytest.raises(LedgerError, match=r"no charge for .*private_moments\(\.\.\., ledger"):
            private(before=[found.release], ledger=ledger)
        private_moments(features(), **SETTINGS, ledger=ledger)
        private(before=[found.release], ledger=ledger)
        with pytest.raises(LedgerError, match="no charge"):
            private(before=[found.release, found.release], ledger=ledger)


def test_a_ledger_without_room_refuses_before_anything_is_released(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger", limit=(0.1, 1e-5)) as ledger:
        with pytest.raises(RuntimeError, match="budget"):
            private_moments(features(), **SETTINGS, ledger=ledger)
        assert not ledger.entries()


def test_seeded_noise_is_charged_once_and_never_reused(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        for _ in range(2):  # the second is a replay
            private_moments(features(), **SETTINGS, seed=7, ledger=ledger)
        assert [count for _, count in ledger.entries()] == [1]
        with pytest.raises(NoiseReuse, match="already used its noise"):
            private_moments(features(seed=2), **SETTINGS, seed=7, ledger=ledger)
        run(private(ledger=ledger))  # with the same seed, whose noise is other noise


def test_a_checkpoint_knows_what_was_before(tmp_path: Path) -> None:
    found = private_moments(features(), **SETTINGS, seed=3)
    mine = private(before=[found.release])
    run(mine, 2)
    mine.save(tmp_path / "checkpoint")

    def resume(**changes: Any) -> pl.Private:
        model = network()
        return pl.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            data(),
            loss=LOSS,
            method=pl.methods.dpsgd(clip=0.5),
            budget=budget(),
            seed=7,
            deterministic=True,
            checkpoint=tmp_path / "checkpoint",
            **changes,
        )

    with pytest.raises(CheckpointMismatch, match="before"):
        resume()
    again = resume(before=[found.release])
    run(again)
    assert again.epsilon() == mine.plan.epsilon


def test_users_are_not_records() -> None:
    found = private_moments(features(), **SETTINGS)
    with pytest.raises(ValueError, match="before is given beside user_ids"):
        private(before=[found.release], user_ids=list(range(40)))


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        (features(), {"noise_multiplier": 0.0}, "noise_multiplier is 0.0; it must be a positive"),
        (features(), {"bound": float("inf")}, "bound is inf"),
        (features(), {"square_bound": -1}, "square_bound is -1"),
        (features(), {"records": 0}, "records is 0; it must be a whole number"),
        (torch.ones(5), {}, r"shape \(5,\) .*one row per record"),
        (torch.ones(5, 3, dtype=torch.uint8), {}, r"torch.uint8; give floating-point numbers"),
    ],
)
def test_settings_are_checked(given: Tensor, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        private_moments(given, **{**SETTINGS, **changes})


def test_it_is_made_of_tensors() -> None:
    found = private_moments(features(), **SETTINGS)
    assert isinstance(found, Moments)
    model = nn.BatchNorm2d(4, affine=False).eval()
    model.running_mean, model.running_var = found.mean, found.variance
    assert model(features()).shape == (60, 4, 3, 2)
