"""The audit of correlated noise: silent where the claim is right, and loud where it is not."""

from typing import Any

import pytest

from plumbline import noise
from plumbline.auditing import BandsAudit, audit_bands
from plumbline.noise import banded
from plumbline.sampling import PoissonSampler


def audit(**settings: Any) -> BandsAudit:
    given: dict[str, Any] = {"repetitions": 10_000, "confidence": 0.999, "seed": 1} | settings
    return audit_bands(banded(3), **given)


def test_what_is_right_is_not_refuted_and_nearly_reached() -> None:
    found = audit()
    assert not found.refuted
    assert found.steps == 9
    assert max(one.epsilon for one in found.bounds) > 0.9 * found.claimed
    assert "Consistent with the claim: over 9 steps" in found.verdict()


def test_parts_that_are_sampled_are_audited_too() -> None:
    found = audit(rate=0.5, noise_multiplier=0.7)
    assert not found.refuted
    assert found.rate == 0.5
    assert found.bounds[0].epsilon > 0.5


def test_columns_that_are_too_long_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def long(self: noise.Banded, steps: int, momentum: float = 0.0) -> tuple[float, ...]:
        return tuple(1.1 * one for one in right(self, steps, momentum))

    right = noise.Banded.coefficients
    monkeypatch.setattr(noise.Banded, "coefficients", long)
    with pytest.raises(ValueError, match="at most 1 exactly"):
        audit()
    monkeypatch.setattr("plumbline.mechanism.correlated.Fraction", lambda one: 0)  # unchecked
    assert audit().refuted


def test_taking_part_too_often_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class EachStep(PoissonSampler):
        parts = property(lambda self: 1, lambda self, value: None)  # type: ignore[assignment]

    monkeypatch.setattr("plumbline.auditing.bands.PoissonSampler", EachStep)
    found = audit()
    assert found.refuted
    assert "refuted" in found.verdict()


def test_independent_noise_has_an_audit_of_its_own() -> None:
    with pytest.raises(ValueError, match="audit_step"):
        audit_bands(banded(1))
