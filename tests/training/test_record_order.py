"""The mark by which a resumed run recognises the order of its records."""

from __future__ import annotations

from typing import Any

import torch

from plumbline.mechanism.random_source import SeededSource
from plumbline.training.record_order import order_mark
from plumbline.training.records import records_of

SOURCE = SeededSource(3, "parts")


def mark(data: Any, users: Any = None, source: SeededSource = SOURCE) -> str:
    return order_mark(records_of(data, None, None), users, source)


def test_the_same_records_have_the_same_mark_and_others_another() -> None:
    rows = torch.randn(50, 3)
    assert mark(rows) == mark(rows.clone())
    assert mark(rows) != mark(rows.flip(0))
    assert mark(rows) != mark(rows + 1)
    assert mark(rows) != mark(rows, source=SeededSource(4, "parts"))  # without the key, no guess


def test_users_are_all_looked_at() -> None:
    rows, users = torch.zeros(500, 1), list(range(500))
    other = [*users[:250], users[251], users[250], *users[252:]]
    assert mark(rows, users) == mark(rows, torch.tensor(users).numpy())
    assert mark(rows, users) != mark(rows, other)


def test_records_of_different_lengths_and_random_augmentation() -> None:
    class Ragged(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, place: int) -> Any:
            return torch.full((1 + place % 3,), float(place)) + torch.rand(1)

    assert mark(Ragged()) == mark(Ragged())
