"""A data set whose records depend on what was fetched before is refused, at once or in time."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from plumbline.gradients.errors import RecordsMixError
from plumbline.mechanism.random_source import SecureSource, SeededSource
from plumbline.training.fetch_check import FetchCheck
from plumbline.training.records import records_of
from tests.training.small import RECORDS, budget, data, private, run


class Own(Dataset[tuple[Tensor, Tensor]]):
    """Augments each record; ``start`` says from which fetch on."""

    def __init__(self, start: int = 0) -> None:
        self.x, self.y = data()
        self.fetches, self.start = 0, start

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        self.fetches += 1
        x = self.x[number]
        return (x + self.noise() if self.fetches > self.start else x), self.y[number]

    def noise(self) -> Tensor:
        raise NotImplementedError


class TorchGenerator(Own):
    generator = torch.Generator().manual_seed(0)

    def noise(self) -> Tensor:
        return torch.randn(6, generator=self.generator)


class NumpyGenerator(Own):
    generator = np.random.default_rng(0)

    def noise(self) -> Tensor:
        return torch.from_numpy(self.generator.standard_normal(6)).float()


class FreshEntropy(Own):
    def noise(self) -> Tensor:
        return torch.from_numpy(np.random.default_rng().standard_normal(6)).float()


class Counter(Own):
    def noise(self) -> Tensor:
        return torch.tensor(self.fetches / 100)


class Remembers(Own):
    """Mixes a record with the one before it, as a careless MixUp does."""

    last = torch.zeros(6)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        mixed = (self.x[number] + self.last) / 2
        self.last = self.x[number]
        return mixed, self.y[number]


@pytest.mark.parametrize("kind", [TorchGenerator, NumpyGenerator, FreshEntropy, Counter, Remembers])
def test_what_a_data_set_keeps_itself_is_refused_before_anything_is_charged(
    kind: type[Own],
) -> None:
    mine = private(dataset=kind(), plan=budget(expected_batch_size=RECORDS))
    with pytest.raises(RecordsMixError, match=r"(fetched twice|drawn from).* anew for each record"):
        run(mine)
    assert mine.charged == 0


class MadeAnew(Own):
    """What the error advises."""

    def noise(self) -> Tensor:
        generator = np.random.default_rng(np.random.randint(2**31))  # noqa: NPY002
        return torch.from_numpy(generator.standard_normal(6)).float()


def test_a_generator_made_anew_from_the_global_ones_is_fine() -> None:
    run(private(dataset=MadeAnew(), plan=budget(expected_batch_size=RECORDS)))


def test_what_starts_later_is_found_at_a_secret_step() -> None:
    records = records_of(Counter(start=40))
    check = FetchCheck(records, SeededSource(3))

    def steps() -> None:
        for step in range(400):
            check.test(torch.arange(10), step, str)

    with pytest.raises(RecordsMixError):
        steps()


def test_secret_steps_are_few_and_not_the_same_in_two_runs() -> None:
    def tested() -> list[int]:
        dataset = MadeAnew()
        check = FetchCheck(records_of(dataset), SecureSource())
        found, before = [], 0
        for step in range(200):
            check.test(torch.arange(10), step, str)
            if dataset.fetches > before:
                found.append(step)
            before = dataset.fetches
        return found

    one, other = tested(), tested()
    assert one[0] == other[0] == 0
    assert one != other
    assert max(len(one), len(other)) < 60  # 13.4 expected, of 200


class Claims(Own):
    """Says that it is row by row, and centres the batch."""

    row_by_row = True

    def fetch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.x[index]
        return x - x.mean(0), self.y[index]


def test_a_false_promise_of_row_by_row_is_found() -> None:
    mine = private(dataset=Claims(), plan=budget(expected_batch_size=RECORDS))
    with pytest.raises(RecordsMixError, match="row_by_row"):
        run(mine)


class Untouchable:
    """Tensors are selected: nothing is fetched again."""

    selected = True


def test_rows_of_tensors_and_empty_batches_are_not_tested() -> None:
    records: Any = Untouchable()
    FetchCheck(records, SeededSource(0)).test(torch.arange(3), 0, str)
    dataset = TorchGenerator()
    FetchCheck(records_of(dataset), SeededSource(0)).test(torch.arange(0), 0, str)
    assert dataset.fetches == 0


def test_missing_values_are_equal_to_themselves() -> None:
    x, y = data()
    x[::2] = torch.nan
    records = records_of(list(zip(x, y, strict=True)))
    FetchCheck(records, SeededSource(0)).test(torch.arange(10), 0, str)
