"""Questions asked of all records at once, before training: charged first, then answered with noise.

Guarantee: what was asked is one full-batch Gaussian mechanism, ``Asked.release``. Passed on as
``make_private(..., before=[release])`` it is part of what the run accounts for and states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from plumbline.mechanism.release import FullBatch, GaussianQuery, Query, StepRelease
from plumbline.training.answering import Answers
from plumbline.training.run_identity import keyed_digest


@dataclass(frozen=True, eq=False)
class Asked:
    """The answers, one for each question, and what they cost."""

    answers: tuple[Tensor, ...]
    release: StepRelease


def name_of(question: str, *, seeded: bool) -> str:
    """A question's name in the ledger and the statement; it says so if the noise is seeded."""
    return question + (" (noise from a seed)" if seeded else "")


def release_of(queries: Sequence[GaussianQuery]) -> StepRelease:
    """What the questions release, asked of all records at once."""
    return StepRelease(sampling=FullBatch(), queries=tuple(queries))


def ask(kind: str, queries: Sequence[Query], *, seed: int | None, ledger: Ledger | None) -> Asked:
    """Charges the questions, and answers them with noise.

    Args:
        kind: What is asked about; part of a name in the ledger. With a seed it must differ between
            data sets that use the same seed, such as "moments (60000, 81, 7, 7)".
        queries: The questions, of tensors.
        seed: Makes the noise reproducible, for who knows the seed; by default it is secure.
        ledger: Where the release is charged, durably, before it is made.

    Raises:
        LedgerError: If the release could not be charged; nothing was released then.
    """
    release = release_of([one.asked for one in queries])
    exact = [(one.name, one.sensitivity, one.sigma, one.value) for one in queries]
    source, _ = charged(kind, release, exact, seed=seed, ledger=ledger)
    answers = Answers(source, 0, 0)
    return Asked(
        tuple(
            answers.answer(query, release.queries, 0, place)["value"]
            for place, query in enumerate(queries)
        ),
        release,
    )


def charged(
    kind: str, release: StepRelease, exact: Any, *, seed: int | None, ledger: Ledger | None
) -> tuple[RandomSource, str]:
    """Charges a release; returns the source of its noise, and its name in the ledger.

    Args:
        kind: As for ``ask``.
        release: What will be released.
        exact: The exact answers, nested, by which a ledger knows that a seeded release is repeated.
        seed: As for ``ask``.
        ledger: Where the release is charged, durably.

    Raises:
        LedgerError: If the release could not be charged.
    """
    source: RandomSource = SecureSource()
    if seed is not None:
        source = SeededSource(seed, f"{kind} {release.to_dict()}")
    run = f"{kind.split()[0]}-{source.stream('run').bytes(8).hex()}"
    if ledger is not None:
        position = None
        if not source.secure:
            position = 0, keyed_digest(source.stream("digest").bytes(32), exact)
        ledger.charge(release.to_dict(), run=run, step=0, noise_position=position, most=1)
    return source, run
