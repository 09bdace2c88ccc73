from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import plumbline as pl
from plumbline.data.base import Constant
from plumbline.data.wrapped import from_torch


class Squares(Dataset[tuple[Tensor, int]]):
    """A data set that counts how often it is read."""

    def __init__(self, records: int) -> None:
        self.records, self.reads = records, 0

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        self.reads += 1
        return torch.tensor([number, number**2], dtype=torch.float32), number % 3


class Labelled(Squares):
    targets = (0, 1, 2, 0)


def test_records_are_read_when_they_are_asked_for() -> None:
    train, test = Labelled(4), Squares(2)
    splits = from_torch(train, test, classes="abc")
    assert (train.reads, test.reads) == (0, 2)
    x, y = splits.train.fetch(torch.tensor([3, 1]))
    assert x.tolist() == [[3, 9], [1, 1]]
    assert y.tolist() == [0, 1]
    assert train.reads == 2
    assert splits.test.y.tolist() == [0, 1]
    assert splits.train.fetch(torch.tensor([], dtype=torch.long))[0].shape == (0, 2)


def test_some_of_the_records() -> None:
    part = from_torch(Squares(9), Squares(2), classes="abc").train.select(torch.tensor([8, 2]))
    assert part[0][0].tolist() == [8, 64]
    assert part.y.tolist() == [2, 2]


def test_groups_and_constants_are_carried_along() -> None:
    splits = from_torch(
        Squares(3),
        Squares(2),
        classes=["a", "b", "c"],
        sensitive_features=([0, 1, 0], torch.tensor([1, 1])),
        groups=["old", "young"],
        constants=[Constant("the scale", "training")],
        name="mine",
    )
    assert splits.name == "mine"
    assert splits.groups == ("old", "young")
    assert splits.train.sensitive_features is not None
    assert splits.train.sensitive_features.tolist() == [0, 1, 0]
    assert len(splits.not_covered) == 1


def test_it_trains(device: torch.device) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    splits = from_torch(data, data, classes=["low", "high"])
    model = torch.nn.Linear(3, 2).to(device)
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        splits.train,
        loss=torch.nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(),
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-3, steps=2, expected_batch_size=10),
        accountant="rdp",
        seed=0,
    )
    for batch in private:
        private.step(batch)
    assert private.steps_done == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"classes": "ab"}, "between 0 and 2; with 2 classes .* from 0 to 1"),
        (
            {"sensitive_features": ([0, 1, 2], [0, 0]), "groups": "xy"},
            "the value 2, but there are 2 groups",
        ),
        ({"sensitive_features": ([0, 1], [0, 0])}, "'sensitive_features': 2"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_torch(Squares(3), Squares(2), **{"classes": "abc", **options})


def test_an_iterable_data_set_is_refused() -> None:
    with pytest.raises(TypeError, match="type generator has no length"):
        from_torch((k for k in range(3)), Squares(2), classes="abc")
