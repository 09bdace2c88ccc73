"""What is taken from a data loader, what is said to be replaced, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import plumbline as pl
from plumbline.mechanism.calibration import BudgetError
from tests.training.reading import Noisy, loader
from tests.training.small import LOSS, RECORDS, budget, data, network, private, run, weights

NO_SIZE = budget(expected_batch_size=None)


def test_the_batch_size_is_the_expected_one_where_the_budget_states_none() -> None:
    mine = private(dataset=loader(Noisy(), 0, batch_size=8), plan=NO_SIZE)
    assert mine.plan.expected_batch_size == 8
    assert mine.plan.sampling_rate == 8 / RECORDS
    stated = private(dataset=Noisy(), plan=budget(expected_batch_size=8))
    run(mine)
    run(stated)
    assert torch.equal(weights(mine.model), weights(stated.model))
    with pytest.raises(BudgetError, match=r"neither expected_batch_size.*or a data loader"):
        private(dataset=Noisy(), plan=NO_SIZE)


def test_the_budget_is_right_where_both_state_a_size() -> None:
    mine = private(dataset=loader(Noisy(), 0, batch_size=8))
    assert mine.plan.expected_batch_size == 10
    by_rate = budget(expected_batch_size=None, sampling_rate=0.1)
    assert private(dataset=loader(Noisy(), 0), plan=by_rate).plan.expected_batch_size == 4
    said = " ".join(mine.statement().split())
    assert "the batch size of 8 is replaced by the one that the budget states" in said


def test_the_statement_says_once_what_is_replaced() -> None:
    given = loader(Noisy(), 0, shuffle=False, drop_last=True)
    said = " ".join(private(dataset=given, plan=NO_SIZE).statement().split())
    assert said.count("data loader") == 1
    assert "batch size of 10 is the expected one" in said
    assert "sequential order is replaced by Poisson sampling" in said
    assert "drop_last has no meaning" in said
    shuffled = private(dataset=loader(Noisy(), 0), plan=NO_SIZE).statement()
    assert "shuffled order" in " ".join(shuffled.split())
    assert "drop_last" not in shuffled
    assert "data loader" not in private(dataset=Noisy()).statement()


def test_a_batch_size_counts_records_and_not_users() -> None:
    users = torch.arange(RECORDS) // 4
    with pytest.raises(ValueError, match="expected_batch_size, in users"):
        private(dataset=loader(Noisy(), 0), plan=NO_SIZE, user_ids=users)
    private(dataset=loader(Noisy(), 0), plan=budget(expected_batch_size=4), user_ids=users)


def test_the_collate_function_is_the_loaders_and_sees_one_record() -> None:
    sizes: list[int] = []

    def doubled(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        sizes.append(len(rows))
        return 2 * torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    given = loader(TensorDataset(*data()), 0, collate_fn=doubled)
    mine = private(dataset=given)
    x, _ = mine.fetch(torch.tensor([3, 1]))
    assert torch.equal(x, 2 * data()[0][[3, 1]])
    assert sizes == [1, 1]
    with pytest.raises(ValueError, match="Give one of the two"):
        private(dataset=given, collate=doubled)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(data()[0])


class Prepared(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


class OwnBatches(BatchSampler):
    pass


DATASET = Noisy()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            DataLoader(DATASET, 4, sampler=WeightedRandomSampler([1.0] * RECORDS, 9)),
            "WeightedRandomSampler.*record_weights",
            id="weighted",
        ),
        pytest.param(
            DataLoader(DATASET, 4, sampler=RandomSampler(DATASET, replacement=True)),
            "sampler of its own, RandomSampler",
            id="with-replacement",
        ),
        pytest.param(
            DataLoader(DATASET, 4, sampler=RandomSampler(DATASET, num_samples=9)),
            "sampler of its own, RandomSampler.*Subset",
            id="some",
        ),
        pytest.param(
            DataLoader(DATASET, 4, sampler=SequentialSampler(range(9))),
            "sampler of its own, SequentialSampler.*Subset",
            id="the-first",
        ),
        pytest.param(
            DataLoader(DATASET, 4, sampler=RandomSampler(range(9), num_samples=RECORDS)),
            "sampler of its own, RandomSampler.*Subset",
            id="some-repeated",
        ),
        pytest.param(
            DataLoader(DATASET, 4, sampler=DistributedSampler(DATASET, 2, 0)),
            "share its records by themselves",
            id="distributed",
        ),
        pytest.param(
            DataLoader(DATASET, 4, sampler=[1, 2, 3]),
            "sampler of its own, list",
            id="list",
        ),
        pytest.param(
            DataLoader(DATASET, batch_sampler=OwnBatches(SequentialSampler(DATASET), 4, False)),
            "sampler of its own, OwnBatches",
            id="batch-sampler",
        ),
        pytest.param(
            DataLoader(DATASET, batch_sampler=[[1, 2], [3]]), "of its own, list", id="batches"
        ),
        pytest.param(
            DataLoader(
                DATASET,
                batch_sampler=BatchSampler(
                    WeightedRandomSampler([1.0] * RECORDS, 9), 4, drop_last=False
                ),
            ),
            "batch_size=None or a batch_sampler",
            id="plain-batch-sampler-of-a-weighted-one",
        ),
        pytest.param(DataLoader(DATASET, batch_size=None), "one record or a batch", id="no-batch"),
        pytest.param(Prepared(DATASET, 4), "Prepared makes batches in a way of its own", id="own"),
        pytest.param(DataLoader(Stream(), 4), "map style", id="iterable"),
    ],
)
def test_what_decides_about_batches_in_another_way_is_refused(given: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        private(dataset=given)


def test_a_loader_of_tensors_and_one_of_a_split() -> None:
    for dataset in (TensorDataset(*data()), pl.data.as_splits(data()).train):
        mine = private(dataset=loader(dataset, 0, batch_size=4), plan=NO_SIZE)
        run(mine)
        assert mine.steps_done == 4


def test_a_resumed_run_may_have_another_number_of_workers(tmp_path: Any) -> None:
    def make(workers: int) -> pl.Private:
        model = network()
        return pl.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            loader(Noisy(), workers),
            loss=LOSS,
            method=pl.methods.dpsgd(clip=0.5),
            budget=NO_SIZE,
            seed=7,
            deterministic=True,
            checkpoint=tmp_path / "run.pt",
        )

    first = make(2)
    run(first, 2)
    first.save()
    second = make(0)
    run(second)
    assert torch.equal(weights(second.model), weights(_whole()))


def _whole() -> torch.nn.Module:
    mine = private(dataset=Noisy())
    run(mine)
    return mine.model
