"""The audit of a step: below the accountant's epsilon for every method, and above it for bugs."""

from __future__ import annotations

import math

import pytest
import torch

from plumbline import methods
from plumbline.auditing import STATISTICS, StepAudit, audit_step, audited
from plumbline.methods import METHODS
from plumbline.sampling import PoissonSampler
from tests.auditing.planted import BUGS, Bug

SURE = 1 - 1e-6
FEW = 4000

LOOSE = {"averaged"}
"""Its bound is for a bucket that the canary turns around; here it has no such neighbours."""


@pytest.mark.parametrize("name", METHODS)
def test_every_named_method_is_audited(name: str) -> None:
    found = audit_step(name, repetitions=FEW, confidence=SURE, seed=0)
    if METHODS[name].make(**METHODS[name].example()).unbounded_reason is not None:
        assert math.isinf(found.claimed)
        assert not found.findings
        assert not found.refuted
        assert "nothing to audit" in found.verdict()
        return
    assert found.moved < math.sqrt(len(audited(name).queries(1.0))) * (1 + 1e-5)
    assert not found.refuted
    assert {finding.statistic for finding in found.findings} == set(STATISTICS)
    gaussian = found.findings[0]
    assert gaussian.bound.how == "Gaussian DP"
    # The canary is as bad as a record can be, or nearly so.
    assert gaussian.share > (0.3 if name in LOOSE else 0.8)
    assert "Consistent with the claim" in found.verdict()


def test_the_plain_gaussian_s_bound_is_near_its_epsilon() -> None:
    found = audit_step("dpsgd", repetitions=20_000, confidence=SURE, seed=0)
    assert found.moved == pytest.approx(1, rel=1e-6)
    assert 0.9 < found.best.share < 1
    assert (found.best.statistic, found.best.bound.how) == ("answers", "Gaussian DP")


@pytest.mark.slow
def test_a_right_step_is_found_wrong_as_seldom_as_the_confidence_says() -> None:
    """At a confidence that is far too low, so that it happens at all."""
    found = [
        audit_step("dpsgd", repetitions=300, confidence=0.6, statistics=("answers",), seed=seed)
        for seed in range(40)
    ]
    # Half of what is left is for each bound; that by Gaussian DP is exact, and counting is not.
    wrong = sum(one.refuted for one in found) / len(found)
    assert 0.05 < wrong < 0.35


def test_securely_drawn_noise_is_audited_as_well() -> None:
    found = audit_step("dpsgd", repetitions=20_000, confidence=SURE)
    assert 0.85 < found.best.share < 1


@pytest.mark.parametrize("rate", [0.5, 0.01])
def test_a_sampled_step(rate: float) -> None:
    found = audit_step("dpsgd", sampling_rate=rate, repetitions=20_000, confidence=SURE, seed=0)
    assert found.claimed < 4.3
    assert not found.refuted
    assert found.best.share > 0.75


def test_the_real_sampler_decides_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes everybody, whatever its rate, is found by counting."""
    settings = {"noise_multiplier": 0.3, "sampling_rate": 0.01, "statistics": ("answers",)}
    right = audit_step("dpsgd", repetitions=20_000, seed=0, delta=1e-3, **settings)
    monkeypatch.setattr(PoissonSampler, "indices", lambda self, *_: torch.arange(self.records))
    wrong = audit_step("dpsgd", repetitions=20_000, seed=0, delta=1e-3, **settings)
    assert not right.refuted
    assert wrong.findings[1].bound.how == "Clopper-Pearson"
    assert wrong.findings[1].refuted


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bugs_are_found(bug: Bug) -> None:
    found = bug.audit(repetitions=REPETITIONS.get(bug.name, 20_000), confidence=SURE, seed=0)
    assert found.refuted
    assert found.best.refuted
    assert "The claim is refuted" in found.verdict()
    if bug.name.startswith("counts"):
        assert found.claimed == pytest.approx(3.43, abs=0.01)
        assert 6.9 < found.best.bound.epsilon < 7.47
    right = bug.without(RIGHT.get(bug.name, methods.dpsgd)(), repetitions=FEW, seed=0)
    assert not right.refuted


REPETITIONS = {"division by the realised batch size": 100_000}
RIGHT = {
    "DPSGD-F: noise at C instead of max C_k": methods.dpsgd_f,
    "FairLens accounted as private": methods.fairlens,
    "counts accounted with their own subsample": lambda: methods.global_adapt(count_noise=0.5),
}
"""The methods without the bug, where it is not DP-SGD."""


def test_a_seeded_audit_can_be_repeated() -> None:
    def once() -> StepAudit:
        return audit_step("global_adapt", repetitions=200, seed=3)

    assert once() == once()


@pytest.mark.slow
def test_counting_alone_reaches_most_of_epsilon() -> None:
    found = audit_step(
        "dpsgd", repetitions=3_000_000, confidence=0.95, statistics=("answers",), seed=0
    )
    counted = found.findings[1]
    assert counted.bound.how == "Clopper-Pearson"
    assert 0.75 < counted.share < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"statistics": ()}, "statistics is"),
        ({"statistics": ("answer",)}, "give one or more of answers, scale, difference"),
        ({"repetitions": 0}, "repetitions is 0"),
        ({"repetitions": 99}, "an audit needs 100 or more"),
        ({"noise_multiplier": 0}, "noise_multiplier is 0"),
        ({"sampling_rate": 2.0}, "sampling_rate is 2"),
        ({"confidence": 1.0}, "confidence is 1"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit_step("dpsgd", **{"repetitions": 100, **settings})  # type: ignore[arg-type]


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match=r"no method 'dpgd'\. Did you mean 'dpsgd'"):
        audit_step("dpgd")


def test_a_method_for_full_batches_is_not_audited_on_samples() -> None:
    with pytest.raises(ValueError, match="full batches only"):
        audit_step("dp_gd_momentum", sampling_rate=0.1, repetitions=100)


def test_without_a_finding_there_is_no_best_one() -> None:
    with pytest.raises(ValueError, match="nothing to audit"):
        _ = audit_step("nonprivate", repetitions=100).best
