"""Every kind of data set gives the same records, and what cannot be sampled is refused."""

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from plumbline.training.records import records_of, to_device

X = torch.arange(12.0).view(6, 2)
Y = torch.tensor([0, 1, 0, 1, 1, 0])
INDEX = torch.tensor([4, 1])


class Map(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        assert isinstance(number, int)
        return X[number], Y[number]


class InOneGo(Map):
    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, Tensor]]:
        return [(X[number], Y[number]) for number in numbers]


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param((X, Y), id="tuple"),
        pytest.param([X, Y], id="list"),
        pytest.param(TensorDataset(X, Y), id="tensor-data-set"),
        pytest.param(Map(), id="map-style"),
        pytest.param(InOneGo(), id="map-style-with-getitems"),
        pytest.param([(x, y) for x, y in zip(X, Y, strict=True)], id="list-of-records"),
    ],
)
def test_pairs(dataset: Any) -> None:
    records = records_of(dataset)
    assert len(records) == 6
    x, y = records.fetch(INDEX)
    assert torch.equal(x, X[INDEX])
    assert torch.equal(y, Y[INDEX])


@pytest.mark.parametrize("dataset", [X, TensorDataset(X)], ids=["tensor", "tensor-data-set"])
def test_one_tensor(dataset: Any) -> None:
    records = records_of(dataset)
    assert len(records) == 6
    assert torch.equal(records.fetch(INDEX), X[INDEX])


def hugging_face() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": X.tolist(), "labels": Y.tolist()})


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param({"x": X, "labels": Y}, id="dict"),
        pytest.param(hugging_face().with_format("torch"), id="hugging-face"),
        pytest.param([{"x": X[i], "labels": Y[i]} for i in range(6)], id="list-of-dicts"),
    ],
)
def test_named_columns(dataset: Any) -> None:
    records = records_of(dataset)
    assert len(records) == 6
    batch = records.fetch(INDEX)
    assert sorted(batch) == ["labels", "x"]
    assert torch.equal(batch["x"], X[INDEX])
    assert torch.equal(batch["labels"], Y[INDEX])


def test_the_users_collate_makes_the_batch() -> None:
    ragged = [torch.ones(length) for length in (1, 3, 2)]

    def pad(rows: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    batch = records_of(ragged, pad).fetch(torch.tensor([2, 0]))
    assert batch.tolist() == [[1, 1], [1, 0]]


def test_a_collate_reads_a_tensor_data_set_and_a_hugging_face_one_record_by_record() -> None:
    def turned(rows: list[Any]) -> Any:
        assert isinstance(rows, list)
        assert len(rows) == 2
        return rows

    assert records_of(TensorDataset(X, Y), turned).fetch(INDEX)[0][1] == Y[4]
    # A collate function can also take records that are not tensors.
    assert records_of(hugging_face(), turned).fetch(INDEX)[0] == {"x": [8.0, 9.0], "labels": 1}


def test_a_mapping_that_is_not_a_dict_becomes_one() -> None:
    # transformers' collators give such mappings; the isolation check must see their tensors.
    batch = records_of([X[0], X[1]], lambda rows: UserDict(x=torch.stack(rows))).fetch(
        torch.tensor([0, 1])
    )
    assert type(batch) is dict


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(X)


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return 6


class NoLength(Dataset[Tensor]):
    def __getitem__(self, number: int) -> Tensor:
        return X[number]


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        pytest.param(Stream(), TypeError, "map style", id="iterable"),
        pytest.param(StreamWithLength(), TypeError, "map style", id="iterable-with-length"),
        pytest.param(
            hugging_face().to_iterable_dataset(), TypeError, "map style", id="hugging-face-stream"
        ),
        pytest.param(NoLength(), TypeError, "no length", id="no-length"),
        pytest.param(hugging_face(), TypeError, "torch format", id="hugging-face-not-torch"),
        pytest.param(
            hugging_face().with_format("numpy"), TypeError, "torch format", id="hugging-face-numpy"
        ),
        pytest.param(DataLoader(Map()), TypeError, "DataLoader", id="data-loader"),
        pytest.param((x for x in X), TypeError, "generator", id="generator"),
        pytest.param((X, Y[:5]), ValueError, r"'0': 6, '1': 5", id="unequal-tuple"),
        pytest.param({"x": X, "y": Y[:5]}, ValueError, r"'x': 6, 'y': 5", id="unequal-dict"),
        pytest.param((X, torch.tensor(1.0)), TypeError, "one row per record", id="a-number"),
        pytest.param({"x": X, "y": Y.numpy()}, TypeError, "'y': 'ndarray'", id="dict-of-arrays"),
        pytest.param((np.ones((6, 2)), Y.numpy()), TypeError, "as_tensor", id="tuple-of-arrays"),
        pytest.param({}, TypeError, "there are none", id="empty-dict"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    dataset: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        records_of(dataset)


def test_a_collate_with_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="list of records"):
        records_of({"x": X}, lambda rows: rows)


def test_to_device_moves_tensors_and_leaves_the_rest(device: torch.device) -> None:
    moved = to_device({"x": X, "names": ["a"], "pair": (Y, 3)}, device)
    assert moved["x"].device.type == device.type
    assert moved["names"] == ["a"]
    assert torch.equal(moved["pair"][0].cpu(), Y)
    assert moved["pair"][1] == 3
