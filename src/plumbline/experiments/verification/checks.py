"""A check: what was looked at, what came of it, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["confirmed", "not confirmed", "contradicted"]
CONFIRMED: Outcome = "confirmed"
UNKNOWN: Outcome = "not confirmed"
CONTRADICTED: Outcome = "contradicted"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        what: In a word or two.
        outcome: What came of it.
        words: What was found, or why it could not be.
    """

    what: str
    outcome: Outcome
    words: str
