"""Each kind of column as features: by an oracle of its own, and each cell by itself."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pytest
import torch

from plumbline.data.table_columns import Categorical, Dated, Hashed, Numeric, Worded
from plumbline.data.table_dates import days_of
from plumbline.data.text import tokens

GAPS = {"", "NA"}
LOW, HIGH = days_of(["2020-01-01", "2020-12-31"]).tolist()
COLUMNS = [
    Numeric("age", 0, 100, 40),
    Dated("day", LOW, HIGH, LOW),
    Categorical("city", ("Oslo", "Rome"), None, "Rome"),
    Categorical("code", ("A1", "B2"), 2),
    Hashed("code", 7),
    Hashed("code", 7, prefix=1),
    Worded("note", 16),
]
CELLS = ["", "NA", "40", "1e9", "2020-06-01", "Oslo", "A12", "A1", "Mild pain, mild", "?", "Ünï 1"]


def bin_of(word: str) -> tuple[int, int]:
    """A hash of its own, from the definition: 63 bits for the bin and one for the sign."""
    number = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
    return number & (2**63 - 1), -1 if number >> 63 else 1


@pytest.mark.parametrize("column", COLUMNS, ids=lambda one: f"{one.kind}-{one.name}")
def test_a_cell_is_encoded_by_itself(column: Numeric) -> None:
    whole, gone = column.encode(CELLS, GAPS)
    assert whole.shape == (len(CELLS), len(column.features))
    assert len(set(column.features)) == len(column.features)
    assert gone.tolist()[:2] == [True, True]
    for place, cell in enumerate(CELLS):
        x, missing = column.encode([cell], GAPS)
        assert torch.equal(x[0], whole[place])
        assert missing[0] == gone[place]
    assert whole.isfinite().all()
    assert float(whole.abs().max()) <= 1


def test_missing_cells() -> None:
    number, day, city, *_, code, _, words = COLUMNS
    assert number.encode(["NA", "40"], GAPS)[0].flatten().tolist() == pytest.approx([-0.2, -0.2])
    x, gone = day.encode(["", "3.4.2020", "2020-01-01"], GAPS)
    assert gone.tolist() == [True, True, False]  # another order is no date
    assert x[:, 0].tolist() == [-1, -1, -1]
    assert not x[:2, 1:].any()
    assert x[2, 1:].any()
    assert city.encode(["", "Lima"], GAPS)[0].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert Categorical("city", ("Oslo",)).encode([""], GAPS)[0].tolist() == [[0, 1]]
    assert not code.encode(["NA"], GAPS)[0].any()
    assert not words.encode(["NA"], GAPS)[0].any()


@pytest.mark.parametrize("prefix", [None, 2])
def test_codes_are_where_the_public_hash_says(prefix: int | None) -> None:
    cells = [f"{letter}{number}" for letter in "ABC" for number in range(10, 40)]
    x, _ = Hashed("code", 64, prefix).encode(cells, GAPS)
    number = [int.from_bytes(blake2b(c[:prefix].encode(), digest_size=8).digest(), "little")
              for c in cells]  # fmt: skip
    assert x.argmax(1).tolist() == [one % 64 for one in number]
    assert x.sum(1).tolist() == [1.0] * len(cells)


def test_words_are_those_of_the_text() -> None:
    texts = ["mild pain", "severe PAIN, since night", "pain pain"]
    x, _ = Worded("note", 32).encode(texts, GAPS)
    expected = np.zeros((3, 32))
    for row, text in enumerate(texts):
        for word in set(tokens(text)):
            place, sign = bin_of(word)
            expected[row, place % 32] += sign
        expected[row] /= np.linalg.norm(expected[row])
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("column", "cells", "count"),
    [
        (COLUMNS[0], ["1", "-1", "101", "", "NA", "old"], 2),
        (COLUMNS[1], ["2020-05-05", "2019-12-31", ""], 1),
        (COLUMNS[2], ["Oslo", "Lima", "NA"], 1),
        (COLUMNS[3], ["A1", "A17", "C", ""], 1),
        (COLUMNS[4], ["anything", ""], 0),
    ],
)
def test_cells_that_are_treated_as_others(
    column: Numeric, cells: Sequence[str], count: int
) -> None:
    assert column.unseen(cells, GAPS) == count
