from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import plumbline as pl
from plumbline.data.base import Constant
from plumbline.data.files import DataError
from plumbline.data.loading import load
from plumbline.data.own import as_splits
from plumbline.data.tables import table
from plumbline.registry import WrongOptions


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
    splits = as_splits(train, test=test, classes="abc")
    assert (train.reads, test.reads) == (0, 2)
    x, y = splits.train.fetch(torch.tensor([3, 1]))
    assert x.tolist() == [[3, 9], [1, 1]]
    assert y.tolist() == [0, 1]
    assert train.reads == 2
    assert splits.test.y.tolist() == [0, 1]
    assert splits.train.fetch(torch.tensor([], dtype=torch.long))[0].shape == (0, 2)


def test_some_of_the_records() -> None:
    part = as_splits(Squares(9), test=Squares(2), classes="abc").train.select(torch.tensor([8, 2]))
    assert part[0][0].tolist() == [8, 64]
    assert part.y.tolist() == [2, 2]


def test_groups_and_constants_are_carried_along() -> None:
    splits = as_splits(
        Squares(3),
        test=Squares(2),
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
    splits = as_splits(data, test=data, classes=["low", "high"])
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
        ({"classes": "ab"}, "y of record 2 is out of range; with 2 classes .* from 0 to 1"),
        (
            {"sensitive_features": ([0, 1, 2], [0, 0]), "groups": "xy"},
            "of record . is out of range; with 2 groups .* from 0 to 1",
        ),
        ({"sensitive_features": ([0, 1], [0, 0])}, "'sensitive_features': 2"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        as_splits(Squares(3), test=Squares(2), **{"classes": "abc", **options})


def test_an_iterable_data_set_is_refused() -> None:
    with pytest.raises(TypeError, match="type generator has no length"):
        as_splits((k for k in range(3)), test=Squares(2), classes="abc")


def made(records: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.arange(2.0 * records).view(records, 2)
    return x, torch.arange(records) % 3, torch.arange(records) % 2


def test_tensors_are_split_by_the_seed() -> None:
    x, y, groups = made()
    splits = as_splits((x, y, groups))
    assert (len(splits.train), len(splits.test)) == (32, 8)
    assert (splits.classes, splits.groups) == (("0", "1", "2"), ("0", "1"))
    both = torch.cat([splits.train.x, splits.test.x])  # type: ignore[arg-type]
    assert torch.equal(both.sort(0)[0], x)
    assert not torch.equal(both, x)
    for part in (splits.train, splits.test):
        rows = (part.x[:, 0] / 2).long()  # type: ignore[index]
        assert torch.equal(part.y, y[rows])
        assert part.sensitive_features is not None
        assert torch.equal(part.sensitive_features, groups[rows])
    again, other = as_splits((x, y), seed=0), as_splits((x, y), seed=1)
    assert torch.equal(again.train.y, splits.train.y)
    assert not torch.equal(other.train.y, splits.train.y)
    assert again.groups == ()


def test_what_was_taken_from_the_records_is_not_covered() -> None:
    words = " ".join(as_splits(made()).not_covered)
    assert "the number of classes: computed from the training records" in words
    assert "the number of groups" in words
    assert as_splits(made(), classes="abc", groups="xy").not_covered == ()


def test_a_test_part_of_one_s_own() -> None:
    one, other = made(), made(6)
    for splits in (as_splits(one, test=other), as_splits((one, other))):
        assert (len(splits.train), len(splits.test)) == (40, 6)
        assert torch.equal(splits.train.y, one[1])
    pair = TensorDataset(*one), TensorDataset(*other)
    assert torch.equal(as_splits(pair).test.y, other[1])


def test_arrays_become_tensors() -> None:
    x, y, _ = made()
    splits = as_splits((x.double().numpy(), y.numpy()))
    assert splits.train[0][0].dtype == torch.float32
    assert splits.train.y.dtype == torch.int64


class WithGroups(Squares):
    def __getitem__(self, number: int) -> Any:
        return (*super().__getitem__(number), number % 2)


def test_the_records_of_a_torch_data_set_may_have_groups() -> None:
    data = WithGroups(20)
    splits = as_splits(data, test_fraction=0.25)
    assert data.reads == 20  # for the targets
    assert (len(splits.train), len(splits.test)) == (15, 5)
    (square, y) = splits.train[3]
    assert y == int(square[0]) % 3
    assert splits.train.sensitive_features is not None
    assert splits.train.sensitive_features[3] == int(square[0]) % 2
    assert splits.train.x is not None


def test_a_data_set_stays_as_it_is() -> None:
    splits = as_splits(made())
    assert as_splits(splits) is splits
    with pytest.raises(ValueError, match="has a test part already"):
        as_splits(splits, test=made())


def frame() -> pandas.DataFrame:
    return pandas.DataFrame(
        {
            "age": [31.5, 62.0, 47.25, 20.0, 55.0, 38.0],
            "visits": [1, 4, 2, 2, 3, 1],
            "ward": pandas.Categorical(["a", "b", "a", "a", "b", "b"]),
            "smoker": [True, False, True, False, False, True],
            "sex": ["f", "m", "m", "f", "f", "m"],
            "ill": [0, 1, 1, 0, 1, 0],
        }
    )


def test_a_frame_is_encoded_as_a_table_file_is(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "patients.csv", index=False)
    from_file = table(
        tmp_path / "patients.csv",
        target="ill",
        sensitive="sex",
        from_data=True,
        test_fraction=0.34,
    )
    splits = load(frame(), target="ill", sensitive="sex", from_data=True, test_fraction=0.34)
    assert splits.encoding == from_file.encoding
    assert splits.constants == from_file.constants
    for part, other in ((splits.train, from_file.train), (splits.test, from_file.test)):
        assert torch.equal(part.x, other.x)  # type: ignore[arg-type]
        assert torch.equal(part.y, other.y)
        assert torch.equal(part.sensitive_features, other.sensitive_features)  # type: ignore[arg-type]
    assert (splits.name, from_file.name) == ("own", "patients")


def test_a_frame_with_a_test_frame_and_gaps() -> None:
    splits = load(frame(), test=frame()[:2], target="ill", from_data=True)
    assert (len(splits.train), len(splits.test)) == (6, 2)
    gone = frame()
    gone.loc[3, "age"] = None
    with pytest.raises(DataError, match=r"'age' has no value.* in row 4 of the DataFrame"):
        load(gone, target="ill", from_data=True, missing="error")
    gone["sex"] = gone["sex"].astype("string")
    gone.loc[:, "age"] = 1.0
    gone.loc[2, "sex"] = pandas.NA
    with pytest.raises(DataError, match=r"'sex' has no value.* in row 3 of the DataFrame"):
        load(gone, target="ill", from_data=True, missing="error")


@pytest.mark.parametrize(
    ("data", "options", "complaint"),
    [
        (frame(), {}, "The data needs the option 'target'"),
        (frame(), {"target": "il"}, "no column of the DataFrame called 'il'. Did you mean 'ill'"),
        (frame()[:0], {"target": "ill"}, "no rows"),
        (made(), {"target": "y"}, "The data: there is no option 'target'"),
        (made()[:1], {}, "There are 1 tensors"),
        ((made()[0], made()[0]), {}, r"y has the shape \[40, 2\]"),
        ((made()[0], made()[1] + 0.5), {}, "one whole number per record"),
        ((made()[0], made()[1] - 1), {}, "y of record . is out of range; with 2 classes"),
        ((made(), made()[:2]), {}, "both must, or neither"),
    ],
)
def test_what_cannot_be_converted(data: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises((ValueError, WrongOptions), match=complaint):
        load(data, **options)
