"""What a record looks like in a run does not depend on the other records of its batch.

The sum that a step would release is compared for a batch with and without one record: nothing that
is done while records are fetched may move it by more than is declared.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import plumbline as pl
from plumbline.training import CheckpointMismatch
from plumbline.training.batches import PrivateBatch
from plumbline.training.stacking import UnequalRecords
from tests.training.small import RECORDS, budget, data, network, private, run

ALL = budget(expected_batch_size=RECORDS)


def asked(mine: pl.Private, indices: Tensor, unit: Tensor | None = None) -> tuple[Tensor, float]:
    """The un-noised sum over these records (or the users ``unit`` of them), and its bound."""
    units = indices if unit is None else unit.unique()
    question = next(mine.method.step(PrivateBatch(1, indices, units, mine, unit)))
    value: Any = question.value
    return torch.cat([one.flatten() for one in value.values()]), question.sensitivity


def moved(mine: pl.Private, without: int) -> float:
    """How far the sum moves when one record is removed, as a multiple of what is declared."""
    everyone = torch.arange(RECORDS)
    one, bound = asked(mine, everyone)
    other, _ = asked(mine, everyone[everyone != without])
    return float((one - other).norm()) / bound


def torch_noise() -> Tensor:
    return torch.randn(6)


def numpy_noise() -> Tensor:
    return torch.from_numpy(np.random.randn(6)).float()  # noqa: NPY002


def python_noise() -> Tensor:
    return torch.tensor([random.gauss() for _ in range(6)])


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Random augmentation in ``__getitem__``, from a global generator."""

    def __init__(self, noise: Callable[[], Tensor]) -> None:
        self.x, self.y = data()
        self.noise = noise

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.x[number] + 3 * self.noise(), self.y[number]


@pytest.mark.parametrize("noise", [torch_noise, numpy_noise, python_noise])
@pytest.mark.parametrize("most", [None, 7])
def test_random_augmentation(noise: Callable[[], Tensor], most: int | None) -> None:
    mine = private(dataset=Augmented(noise), plan=ALL, max_physical_batch=most)
    assert 0 < moved(mine, without=0) <= 1 + 1e-5
    run(mine)


def test_augmentation_in_the_collate_function() -> None:
    def noisy(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x = torch.stack([x for x, _ in rows])
        return x + 3 * torch.randn_like(x), torch.stack([y for _, y in rows])

    mine = private(dataset=list(zip(*data(), strict=True)), collate=noisy, plan=ALL)
    assert 0 < moved(mine, without=0) <= 1 + 1e-5


def test_a_record_is_the_same_again_within_a_step_and_another_in_the_next() -> None:
    mine = private(dataset=Augmented(torch_noise), plan=ALL)
    some, one = torch.tensor([3, 8, 5]), torch.tensor([8])
    assert torch.equal(mine.fetch(some, 2)[0][1:2], mine.fetch(one, 2)[0])
    assert not torch.equal(mine.fetch(one, 2)[0], mine.fetch(one, 3)[0])


def test_two_secure_runs_augment_differently() -> None:
    runs = [private(dataset=Augmented(torch_noise), seed=None, plan=ALL) for _ in range(2)]
    first, second = (mine.fetch(torch.tensor([0]), 0)[0] for mine in runs)
    assert not torch.equal(first, second)


def test_a_run_leaves_the_users_generators_as_they_were() -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    run(private(dataset=Augmented(numpy_noise), plan=ALL), 3)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def sequences() -> list[tuple[Tensor, int]]:
    """One of them is much longer than the others."""
    lengths = [3 + number % 4 for number in range(RECORDS - 1)] + [300]
    return [(torch.ones(length, 2), number % 2) for number, length in enumerate(lengths)]


def padded_to_the_longest(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    x = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True)
    return x, torch.tensor([label for _, label in rows])


class Mean(nn.Module):
    """The mean over time, of padding too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(100 * x.mean(1))
        return y


def test_padding_to_the_longest_record_of_a_batch() -> None:
    mine = private(Mean(), sequences(), collate=padded_to_the_longest, plan=ALL)
    with pytest.raises(UnequalRecords, match=r"pad_to=\{'0': 128\}"):
        run(mine)
    assert mine.charged == 0


def test_padding_to_a_declared_length() -> None:
    mine = private(Mean(), sequences(), collate=padded_to_the_longest, pad_to={0: 300}, plan=ALL)
    assert 0 < moved(mine, without=RECORDS - 1) <= 1 + 1e-5
    run(mine)


def test_a_record_longer_than_declared() -> None:
    mine = private(Mean(), sequences(), collate=padded_to_the_longest, pad_to=128, plan=ALL)
    with pytest.raises(UnequalRecords, match="longer than the 128"):
        run(mine)
    assert mine.charged == 0


def test_a_run_goes_on_only_with_its_declared_length(tmp_path: Any) -> None:
    def start(length: int) -> pl.Private:
        return private(Mean(), sequences(), pad_to=length, checkpoint=tmp_path / "run")

    run(start(300), 1)
    with pytest.raises(CheckpointMismatch, match="pad_to"):
        start(301)


def shuffled_in_the_batch(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Sorts the batch, as for packed sequences."""
    rows = sorted(rows, key=lambda row: float(row[0].sum()))
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


def test_users_records_are_pooled_by_number_whatever_the_collate_function_does() -> None:
    users = torch.arange(RECORDS) // 4
    pairs = list(zip(*data(), strict=True))
    sums = []
    for dataset, collate in ((pairs, shuffled_in_the_batch), (data(), None)):
        mine = private(network(), dataset, collate=collate, user_ids=users)
        everyone, bound = asked(mine, torch.arange(RECORDS), users)
        fewer, _ = asked(mine, torch.arange(4, RECORDS), users[4:] - 1)
        assert float((everyone - fewer).norm()) <= bound * (1 + 1e-5)
        sums.append(everyone)
    assert torch.equal(*sums)


def test_a_collate_function_that_drops_the_record() -> None:
    def without(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        x, y = shuffled_in_the_batch(rows)
        return x[1:], y[1:]

    mine = private(dataset=list(zip(*data(), strict=True)), collate=without, plan=ALL)
    with pytest.raises(UnequalRecords, match="batch of one"):
        run(mine)
