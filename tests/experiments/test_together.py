"""What all runs of a folder cost: each run once, and each table's schema once, whoever used it."""

from dataclasses import replace
from pathlib import Path

import pytest

from plumbline.experiments.charged_runs import runs_beside
from plumbline.experiments.together import totals
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import FullBatch, GaussianQuery, PoissonSampling, StepRelease
from plumbline.training.full_batch_queries import name_of

DELTA = 1e-6


def release(noise: float, *, rate: float | None = None) -> StepRelease:
    sampling = FullBatch() if rate is None else PoissonSampling(rate=rate)
    query = GaussianQuery(name="it", sensitivity=1.0, noise_multiplier=noise)
    return StepRelease(sampling=sampling, queries=(query,))


SCHEMA, STEP, BARE = release(5.0), release(1.0, rate=0.1), release(0.0, rate=0.1)


def book(path: Path, **charged: StepRelease) -> None:
    path.parent.mkdir()
    with Ledger.open(path) as ledger:
        for run, one in charged.items():
            ledger.charge(one.to_dict(), run=run.replace("_", "-"), step=0, most=1)


def test_a_schema_counts_once_and_also_if_no_private_run_used_it(tmp_path: Path) -> None:
    book(tmp_path / "a" / "ledger", schema_1=SCHEMA, bare=BARE)  # the first to be read
    book(tmp_path / "b" / "ledger", schema_1=SCHEMA, private=STEP)
    book(tmp_path / "schema-1" / "schema.ledger", schema_1=SCHEMA)
    book(tmp_path / "schema-2" / "schema.ledger", schema_2=SCHEMA)  # which found too little
    total = totals(runs_beside(tmp_path, single=False), delta=DELTA).everything
    assert (total.private, len(total.unbounded)) == (2, 1)
    assert total.parts == {"run": 2, "question": 1}
    expected = epsilon([(SCHEMA, 2), (STEP, 1)], delta=DELTA)
    assert total.epsilon == pytest.approx(expected, rel=1e-12)


def test_without_a_private_run_no_number_is_said(tmp_path: Path) -> None:
    book(tmp_path / "a" / "ledger", bare=BARE)
    found = totals(runs_beside(tmp_path, single=False), delta=DELTA)
    assert found.everything.private == 0
    assert not found.everything.bounded
    assert found.everything.to_json()["epsilon"] is None
    assert found.everything_words == (
        "Everything that was run here: 1 run. What it costs has no bound, since it had no privacy."
    )


def test_a_question_that_no_run_has_used_is_said(tmp_path: Path) -> None:
    book(tmp_path / "schema-1" / "schema.ledger", schema_1=SCHEMA)
    found = totals(runs_beside(tmp_path, single=False), delta=DELTA)
    spent = epsilon([(SCHEMA, 1)], delta=DELTA)
    assert found.everything.epsilon == pytest.approx(spent, rel=1e-12)
    assert found.everything_words == (
        "Everything that was run here: 1 question about the rows without a run. Together that "
        f"costs a record {found.everything.cost}."
    )


def test_a_seeded_question_that_no_run_has_used_has_no_bound(tmp_path: Path) -> None:
    (query,) = SCHEMA.queries
    known = replace(SCHEMA, queries=(replace(query, name=name_of(query.name, seeded=True)),))
    book(tmp_path / "schema-1" / "schema.ledger", schema_1=known)
    book(tmp_path / "a" / "ledger", private=STEP)
    total = totals(runs_beside(tmp_path, single=False), delta=DELTA).everything
    assert (total.private, total.seeded) == (2, 1)
    assert not total.bounded
    assert total.epsilon == pytest.approx(epsilon([(STEP, 1)], delta=DELTA), rel=1e-12)
