"""Data sets that name a record several times are refused; those that name each once are not."""

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split

import plumbline as pl
from plumbline.repeated_records import refuse_repeated
from tests.training.small import budget, data, private

RECORDS: Any = TensorDataset(*data(6))
OTHERS: Any = TensorDataset(*data(6))  # equal ones, of other people


def kind(dataset: Any) -> str:
    return type(dataset).__name__


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(RECORDS, [0, 1, 1]),
        Subset(RECORDS, torch.tensor([0, 0])),  # type: ignore[arg-type]
        Subset(RECORDS, [5, -1]),
        Subset(Subset(RECORDS, [3, 4, 3]), [0, 2]),
        Subset(ConcatDataset([OTHERS, RECORDS]), [6, 6]),
        ConcatDataset([RECORDS, RECORDS]),
        ConcatDataset([OTHERS, RECORDS, Subset(OTHERS, [4])]),
    ],
    ids=kind,
)
def test_a_record_that_is_named_several_times(dataset: Any) -> None:
    with pytest.raises(ValueError, match=rf"{kind(dataset)}, has a record several times"):
        private(dataset=dataset)
    # All of one user, and so are the copies of a record.
    users = torch.zeros(len(dataset)).long()
    private(dataset=dataset, user_ids=users, plan=budget(expected_batch_size=1))


@pytest.mark.parametrize(
    "dataset",
    [
        RECORDS,
        data(6),
        Subset(RECORDS, [0, 1, -1]),
        Subset(RECORDS, []),
        Subset({"ann": 1, "ben": 2}, ["ann", "ben"]),  # type: ignore[arg-type, list-item]
        Subset(Subset(RECORDS, [3, 4, 3]), [0, 1]),
        Subset(ConcatDataset([RECORDS, OTHERS]), [0, 6, 11]),
        ConcatDataset([Subset(RECORDS, [0]), OTHERS, Subset(RECORDS, [1])]),
        *random_split(RECORDS, [2, 4]),
    ],
    ids=kind,
)
def test_records_that_are_each_named_once(dataset: Any) -> None:
    refuse_repeated(dataset)


def test_the_instruments_refuse_them_too() -> None:
    with pytest.raises(ValueError, match="has a record several times"):
        pl.data.as_splits(ConcatDataset([RECORDS, RECORDS]))


def test_a_hugging_face_data_set_says_which_rows_it_names() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a", "b", "a", "d"], "label": [0, 1, 0, 1]})
    others = datasets.Dataset.from_dict({"text": ["a", "b", "a", "d"], "label": [0, 1, 0, 1]})
    join = datasets.concatenate_datasets
    for repeated in (
        rows.select([0, 3, 3]),
        rows.repeat(2),
        join([rows, others, rows]),
        join([rows.select([0, 2]), others, rows.select([2])]),
        join([rows.select(range(3)), rows.select(range(2, 4))]),
        ConcatDataset([rows, rows.select([2])]),
    ):
        with pytest.raises(ValueError, match="has a record several times"):
            refuse_repeated(repeated)
    for once in (
        rows,
        rows.shuffle(seed=0),
        rows.select([]),
        rows.remove_columns(["text", "label"]),
        rows.train_test_split(0.5)["train"],
        rows.select([0, 0, 1]).select([0, 2]),
        join([rows.select([0, 2]), others, rows.select([1])]),
        join([rows.select(range(2)), rows.select(range(2, 4))]),
        rows.add_column("more", range(4)),
        rows.map(lambda row: {"more": row["label"]}),
        datasets.Dataset.from_dict({"nothing": [None, None]}),
    ):
        refuse_repeated(once)
