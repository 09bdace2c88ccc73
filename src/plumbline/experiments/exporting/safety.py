"""Whether a model is safe to ship: confirmed, covered by epsilon, and of a run that is whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from plumbline.data import TableEncoding
from plumbline.experiments.verification import CONFIRMED, CONTRADICTED, Check, Verification

_NEEDED = ("ledger", "epsilon", "statement", "files", "weights")
"""The checks that must be confirmed, and not only not contradicted."""


class NotExported(RuntimeError):
    """A run that is not exported, and why; nothing was written."""


def refuse_target(target: Path) -> None:
    """Refuses a folder in which something is.

    Raises:
        NotExported: If it is so.
    """
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise NotExported(
            f"Not exported: {target} is there already, and an export is a new folder. Give another "
            "one (--out), or take it away."
        )


def refuse_unconfirmed(found: Verification) -> None:
    """Refuses a run that is not finished, or of which not all that matters is confirmed.

    Raises:
        NotExported: If it is so.
    """
    folder = found.claim.folder
    if found.claim.result is None:
        raise NotExported(
            f"Not exported: the run in {folder} is not finished. The command that started it goes "
            "on with it."
        )
    if wrong := found.of(CONTRADICTED):
        raise NotExported(
            f"Not exported: the run in {folder} is not what it says. {_said(wrong[0])} `plumbline "
            f"verify {folder}` says more."
        )
    confirmed = {check.what for check in found.of(CONFIRMED)}
    for check in found.checks:
        if check.what in _NEEDED and check.what not in confirmed:
            raise NotExported(
                f"Not exported: the run in {folder} could not be confirmed. {_said(check)}"
            )


def unsafe(found: Verification, encoding: TableEncoding | None) -> Iterator[str]:
    """Why a confirmed run's model is not safe to ship, in sentences; nothing if it is."""
    if found.epsilon is None or math.isinf(found.epsilon):
        yield "It has no guarantee: its epsilon is infinite, and its statement says why."
    elif found.claim.spec.random_seed is not None:
        yield "Its noise comes from a seed: whoever knows or guesses the seed can remove the noise."
    if encoding is not None and encoding.not_covered:
        taken = "; ".join(encoding.not_covered)
        yield f"Its encoding was taken from the training rows as they are: {taken}."


def _said(check: Check) -> str:
    return f"{check.what.capitalize()}: {check.words}."
