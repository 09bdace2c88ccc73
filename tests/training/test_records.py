"""Every kind of data set gives the same records, and what cannot be sampled is refused."""

import random
from collections import UserDict
from collections.abc import Iterator
from functools import partial
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from plumbline.data.base import Split
from plumbline.data.images import Pixels
from plumbline.data.own import as_splits
from plumbline.gradients.errors import RecordsMixError
from plumbline.training.records import records_of, to_device
from plumbline.training.stacking import UnequalRecords

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


def test_the_users_collate_is_given_one_record_at_a_time() -> None:
    sizes = []

    def doubled(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        sizes.append(len(rows))
        return 2 * torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    x, y = records_of(Map(), doubled).fetch(INDEX)
    assert sizes == [1, 1]
    assert torch.equal(x, 2 * X[INDEX])
    assert torch.equal(y, Y[INDEX])


def test_a_collate_reads_a_tensor_data_set_and_a_hugging_face_one_record_by_record() -> None:
    pairs = records_of(TensorDataset(X, Y), lambda rows: {"y": torch.stack([y for _, y in rows])})
    assert torch.equal(pairs.fetch(INDEX)["y"], Y[INDEX])
    # A collate function can also take records that are not tensors.
    table = records_of(hugging_face(), lambda rows: torch.tensor([row["x"] for row in rows]))
    assert torch.equal(table.fetch(INDEX), X[INDEX])


def test_several_records_are_asked_for_one_by_one() -> None:
    asked: list[Any] = []

    class Many(InOneGo):
        def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, Tensor]]:
            asked.append(numbers)
            return super().__getitems__(numbers)

    class Fetches(Map):
        def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
            asked.append(index.tolist())
            return X[index], Y[index]

    class Promises(Fetches):
        row_by_row = True

    for dataset, expected in [
        (Many(), [[4], [1]]),
        (Fetches(), [[4], [1]]),
        (Promises(), [[4, 1]]),
    ]:
        asked.clear()
        x, _ = records_of(dataset).fetch(INDEX)
        assert asked == expected
        assert torch.equal(x, X[INDEX])


def test_getitems_that_gives_another_number_of_records() -> None:
    class Two(InOneGo):
        def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, Tensor]]:
            return super().__getitems__([*numbers, 0])

    with pytest.raises(ValueError, match="asked for one record and gave 2"):
        records_of(Two()).fetch(INDEX)


RAGGED = [torch.ones(length) for length in (1, 3, 2)]


def test_lengths_that_differ_need_a_declared_one() -> None:
    def longest(rows: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    with pytest.raises(UnequalRecords, match=r"pad_to=128"):
        records_of(RAGGED, longest).fetch(torch.tensor([2, 0]))
    for collate in (None, longest):
        batch = records_of(RAGGED, collate, 4).fetch(torch.tensor([2, 0]))
        assert batch.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]


def test_a_hugging_face_data_set_of_texts_is_padded() -> None:
    texts = [[5, 6], [7], [8, 9]]
    table = datasets.Dataset.from_dict({"ids": texts, "y": [0, 1, 0]}).with_format("torch")
    with pytest.raises(UnequalRecords, match="'ids'"):
        records_of(table).fetch(torch.tensor([0, 1]))
    records = records_of(table, pad_to={"ids": (3, -1)})
    assert records.fetch(torch.tensor([0, 1]))["ids"].tolist() == [[5, 6, -1], [7, -1, -1]]
    # Records of one length by chance are padded all the same.
    assert records.fetch(torch.tensor([0, 2]))["ids"].tolist() == [[5, 6, -1], [8, 9, -1]]
    assert records.fetch(torch.tensor([0]))["ids"].tolist() == [[5, 6, -1]]


def test_a_missing_value_does_not_change_the_type_of_other_records() -> None:
    table = datasets.Dataset.from_dict({"y": [1, None, 3]}).with_format("torch")
    records = records_of(table)
    assert records.fetch(torch.tensor([0, 2]))["y"].dtype == torch.int64
    with pytest.raises(UnequalRecords, match=r"'y'.*one type"):
        records.fetch(torch.tensor([0, 1]))


def test_pad_to_is_for_records_that_are_read_one_by_one() -> None:
    with pytest.raises(ValueError, match="Leave pad_to out"):
        records_of((X, Y), pad_to=3)
    with pytest.raises(ValueError, match="Leave pad_to out"):
        records_of(Split(X, Y), pad_to=3)


def test_a_split_is_fetched_at_once_only_if_nothing_of_the_users_prepares_it() -> None:
    shown: list[int] = []

    def centred(rows: Tensor) -> Tensor:
        shown.append(len(rows))
        return rows - rows.mean(0)

    records_of(Split(X, Y, prepare=centred)).fetch(INDEX)
    assert shown == [1, 1]
    assert records_of(Split(X, Y, prepare=Pixels())).fetch(INDEX)[0].shape == (2, 2)
    assert Split(X, Y, prepare=Pixels()).row_by_row
    assert not as_splits((Map(), Map()), classes="ab").train.row_by_row


def test_a_mapping_that_is_not_a_dict_becomes_one() -> None:
    # transformers' collators give such mappings, whose tensors must be seen.
    records = records_of([X[0], X[1]], lambda rows: UserDict(x=torch.stack(rows)))
    batch = records.fetch(torch.tensor([0, 1]))
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


class Counted(Map):
    """Counts how often a record is read; draws if it is told to."""

    def __init__(self, draws: bool) -> None:
        self.draws, self.reads = draws, 0

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        x, y = super().__getitem__(number)
        return (x + torch.rand(2) if self.draws and number % 2 else x), y


def test_records_are_read_once_with_their_own_generators() -> None:
    drawing = Counted(True)
    records = records_of(drawing)
    first = [records.fetch(INDEX, "key")[0] for _ in range(3)]
    assert drawing.reads == 6
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], records.fetch(INDEX, "next")[0])


class Cached(Map):
    """Keeps what it read, with the noise that it drew."""

    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number not in self.cache:
            self.cache[number] = X[number] + torch.rand(2)
        return self.cache[number], Y[number]


def test_a_data_set_that_keeps_its_first_reading_reads_with_the_records_own_numbers() -> None:
    alone = records_of(Cached()).fetch(torch.tensor([1]), "key")[0]
    assert torch.equal(records_of(Cached()).fetch(INDEX, "key")[0][1:], alone)


RNG = np.random.default_rng(0)


class Held(Map):
    """Has a generator somewhere, and uses it for one record alone."""

    def __init__(self, where: str) -> None:
        self.generator: Any = torch.Generator()
        self.nested = {"transforms": [partial(np.random.default_rng(0).normal, 0.0)]}
        self.where = where
        closed = random.Random(0)
        self.closed = lambda: closed.random()

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number == 4:
            if self.where == "attribute":
                torch.rand(1, generator=self.generator)
            elif self.where == "nested":
                self.nested["transforms"][0]()
            elif self.where == "global":
                RNG.random()
            elif self.where == "closure":
                self.closed()
        return super().__getitem__(number)


@pytest.mark.parametrize("where", ["attribute", "nested", "global", "closure"])
def test_a_generator_that_the_data_set_holds_must_not_be_drawn_from(where: str) -> None:
    for dataset in (Held(where), Subset(Held(where), range(6))):
        records = records_of(dataset)
        records.fetch(torch.tensor([1, 2]), "key")
        with pytest.raises(RecordsMixError, match=r"data set .* holds.*Use the global generators"):
            records.fetch(INDEX, "key")
    records_of(Held("nowhere")).fetch(INDEX, "key")


def test_a_generator_that_the_collate_function_holds_must_not_be_drawn_from() -> None:
    own = np.random.default_rng(0)

    def collate(rows: list[Any]) -> Any:
        return rows[0][0][None] + own.random()

    with pytest.raises(RecordsMixError, match="collate function"):
        records_of(Map(), collate).fetch(INDEX, "key")


@pytest.mark.parametrize(
    "row",
    [
        (X[0], 3, 2.5, True),
        [X[0], {"a": Y[0], "b": np.float32(2)}],
        {"x": np.ones(3), "y": [1, 2]},
        5,
        X[0],
    ],
    ids=["tuple", "list", "dict", "number", "tensor"],
)
def test_one_record_is_collated_as_torch_does(row: Any) -> None:
    def told(batch: Any) -> Any:
        return tree_map(lambda leaf: (leaf.dtype, leaf.tolist()), batch)

    records: Any = records_of([row, row], pad_to=9)
    assert told(records.read(0)) == told(default_collate([row]))
