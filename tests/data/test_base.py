import pytest
import torch
from torch import Tensor

from plumbline.data.base import Constant, Split, Splits


def images(records: int = 5) -> Split:
    x = torch.arange(records * 4, dtype=torch.uint8).view(records, 2, 2)
    return Split(x, torch.arange(records), torch.arange(records) % 2, lambda rows: rows / 255)


def test_records_are_prepared_when_they_are_fetched() -> None:
    part = images()
    x, y = part.fetch(torch.tensor([3, 0]))
    torch.testing.assert_close(x, torch.stack([part.x[3], part.x[0]]) / 255)
    assert y.tolist() == [3, 0]
    assert part.x.dtype == torch.uint8


def test_all_records_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.data.base._AT_ONCE", 3)
    part = Split(torch.arange(7.0)[:, None], torch.arange(7), prepare=lambda rows: 2 * rows)
    pieces = list(part.pieces())
    assert [len(y) for _, y in pieces] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in pieces])[:, 0], 2 * torch.arange(7.0))
    assert torch.equal(torch.cat([y for _, y in pieces]), part.y)


def test_a_part_is_a_torch_data_set() -> None:
    part = images()
    x, y = part[-1]
    torch.testing.assert_close(x, part.x[4] / 255)
    assert (len(part), int(y)) == (5, 4)
    assert [int(y) for _, y in part] == [0, 1, 2, 3, 4]  # which ends by an IndexError
    batch, targets = next(iter(torch.utils.data.DataLoader(part, batch_size=3)))
    assert batch.shape == (3, 2, 2)
    assert targets.tolist() == [0, 1, 2]


def test_some_of_the_records() -> None:
    part = images().select(torch.tensor([4, 1]))
    assert part.y.tolist() == [4, 1]
    assert part.sensitive_features is not None
    assert part.sensitive_features.tolist() == [0, 1]
    torch.testing.assert_close(part[0][0], images()[4][0])


class Pairs:
    """Records of two tensors."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.numbers[index], 10 * self.numbers[index]

    def select(self, index: Tensor) -> "Pairs":
        return Pairs(self.numbers[index])


def test_records_of_several_tensors() -> None:
    part = Split(Pairs(torch.arange(4)), torch.zeros(4))
    (first, second), _ = part.fetch(torch.tensor([1, 3]))
    assert (first.tolist(), second.tolist()) == ([1, 3], [10, 30])
    (first, second), _ = part.select(torch.tensor([2, 1]))[0]
    assert (first.item(), second.item()) == (2, 20)


def test_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'x': 2, 'y': 3.*one row per record"):
        Split(torch.zeros(2, 1), torch.zeros(3))
    with pytest.raises(ValueError, match="'sensitive_features': 1"):
        Split(torch.zeros(2, 1), torch.zeros(2), torch.zeros(1))


def test_the_statement_lists_what_was_computed_from_the_training_records() -> None:
    scale, size = Constant("the scale", "training"), Constant("the size", "public")
    part = images()
    splits = Splits("some", part, part, ("a",), constants=(scale, size))
    assert splits.not_covered == (
        "the scale: computed from the training records, not covered by epsilon",
    )
    assert str(size) == "the size: public constants"
