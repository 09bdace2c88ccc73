"""A diagnostic."""

from __future__ import annotations

from typing import Any

from plumbline.diagnostics import diagnostic


@diagnostic
def longest_gradient(look: Any) -> dict[str, float]:
    """The longest gradient of the sample, and how many times as long as the mean it is."""
    norms = look.sample.norms
    return {"longest": float(norms.max()), "times the mean": float(norms.max() / norms.mean())}
