"""Questions before training: what is charged is what is asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline.mechanism.ledger import Ledger, NoiseReuse
from plumbline.mechanism.release import FullBatch, Query
from plumbline.training import full_batch_queries
from plumbline.training.full_batch_queries import ask, name_of, release_of

QUERIES = [
    Query(value=torch.tensor([1.0, 2.0]), sensitivity=2.0, sigma=3.0, name="one"),
    Query(value=torch.tensor([5.0]), sensitivity=1.0, sigma=0.5, name="another"),
]


def test_what_is_charged_is_what_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Query] = []

    class Watched(full_batch_queries.Answers):
        def answer(self, query: Query, *rest: Any) -> dict[str, Tensor]:
            seen.append(query)
            return super().answer(query, *rest)

    monkeypatch.setattr(full_batch_queries, "Answers", Watched)
    with Ledger.open(tmp_path / "ledger") as ledger:
        found = ask("small", QUERIES, seed=None, ledger=ledger)
        assert ledger.entries() == [(found.release.to_dict(), 1)]
    assert seen == QUERIES
    assert found.release == release_of([query.asked for query in QUERIES])
    assert found.release.sampling == FullBatch()
    assert [len(answer) for answer in found.answers] == [2, 1]


def test_nothing_is_answered_that_was_not_charged(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        first = ask("small", QUERIES, seed=1, ledger=ledger)
        again = ask("small", QUERIES, seed=1, ledger=ledger)  # a replay
        assert all(map(torch.equal, first.answers, again.answers))
        changed = [QUERIES[0], replace(QUERIES[1], value=torch.tensor([6.0]))]
        with pytest.raises(NoiseReuse):
            ask("small", changed, seed=1, ledger=ledger)
        assert [count for _, count in ledger.entries()] == [1]


def test_a_seed_is_named() -> None:
    assert name_of("the mean", seeded=False) == "the mean"
    assert name_of("the mean", seeded=True) == "the mean (noise from a seed)"
