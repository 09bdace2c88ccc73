"""Verification of runs: what a folder claims, and what its ledger and files confirm of it."""

from plumbline.experiments.verification.checks import CONFIRMED, CONTRADICTED, UNKNOWN, Check
from plumbline.experiments.verification.verifying import NEVER, Verification, verify

__all__ = [
    "CONFIRMED",
    "CONTRADICTED",
    "NEVER",
    "UNKNOWN",
    "Check",
    "Verification",
    "verify",
]
