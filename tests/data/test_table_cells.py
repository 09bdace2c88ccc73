"""Cells as numbers: what is new beside the kinds of columns, which have tests of their own."""

import ast
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plumbline.data import table_cells, table_dates
from plumbline.data.hashing import hashed
from plumbline.data.table_cells import as_text, places_of, text_features, texts_of
from plumbline.data.text import corpus


@pytest.mark.parametrize("module", [table_cells, table_dates])
def test_only_numpy_is_needed(module: Any) -> None:
    """Such a file is copied beside an exported model."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = {
        name.split(".")[0] if "plumbline" not in name else name
        for node in ast.walk(tree)
        for name in (
            [one.name for one in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    standard = {"__future__", "collections", "csv", "datetime", "hashlib", "re", "typing"}
    assert names <= {*standard, "numpy", "plumbline.data.table_dates"}


@given(texts=st.lists(st.text("ab c'é.", max_size=30), max_size=6), bins=st.integers(1, 40))
def test_words_are_hashed_as_those_of_a_text_data_set(texts: list[str], bins: int) -> None:
    found, gone = text_features(texts, set(), bins)
    sparse, rows = hashed(corpus(texts), bins), torch.arange(len(texts))
    expected = torch.zeros(len(texts), bins)
    if texts:
        expected = expected.scatter_add(1, *sparse[rows])
    np.testing.assert_array_equal(found, expected.numpy())
    assert not gone.any()


@pytest.mark.parametrize(
    ("cell", "categories", "place"),
    [
        ("1", ("0", "1"), 1),
        ("1.0", ("0", "1"), 1),
        ("1", ("0.0", "1.0"), 1),
        ("1.0", ("1", "1.0"), 1),
        ("1.5", ("1", "2"), 2),
        ("True", ("false", "true"), 1),
        ("true", ("FALSE", "TRUE"), 1),
        ("TRUE", ("False", "True"), 1),
        ("true", ("yes", "no"), 2),
        ("oslo", ("Oslo",), 1),
        ("", ("", "a"), 0),
    ],
)
def test_what_a_program_spells_otherwise_is_the_same_category(
    cell: str, categories: tuple[str, ...], place: int
) -> None:
    assert places_of([cell], categories).tolist() == [place]


def test_a_cell_has_no_say_about_another() -> None:
    """Nor does one that is spelled between it and a category, as 1.0 is between 1.0.0 and 1."""
    cells, categories = ["1.0", "2", "1", "True", "x", "1.0", "1.0.0"], ["1", "2.0", "true"]
    places = [0, 1, 0, 2, 3, 0, 3]
    assert places_of(cells, categories).tolist() == places
    assert [int(places_of([one], categories)[0]) for one in cells] == places


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (" a ", "a"),
        ("nan", "nan"),
        ("None", "None"),
        (None, ""),
        (float("nan"), ""),
        (np.float32("nan"), ""),
        (pd.NA, ""),
        (pd.NaT, ""),
        (3, "3"),
        (3.0, "3"),
        (np.float32(3), "3"),
        (-0.0, "0"),
        (3.5, "3.5"),
        (float("inf"), "inf"),
        (1e300, "1e+300"),
        (True, "True"),
        (np.bool_(False), "False"),
        (date(2021, 4, 3), "2021-04-03"),
        (datetime(2021, 4, 3, 12, 30), "2021-04-03"),
        (pd.Timestamp("0987-04-03"), "0987-04-03"),
    ],
    ids=repr,
)
def test_cells_of_programs_as_text(cell: Any, text: str) -> None:
    assert as_text(cell) == text


def test_a_missing_cell_changes_no_other_of_its_column() -> None:
    """It makes whole numbers floats; the names of categories would tell, and hashes too."""
    whole, lacking = (pd.DataFrame({"ward": cells})["ward"] for cells in ([1, 2], [1, 2, None]))
    assert lacking.dtype != whole.dtype
    texts = [as_text(cell) for cell in lacking.tolist()]
    assert texts == [*(as_text(cell) for cell in whole.tolist()), ""]


@pytest.mark.parametrize("order", ["ymd", "dmy", "mdy"])
def test_dates_of_programs_are_read_in_the_order_of_the_column(order: Any) -> None:
    day = date(2021, 4, 3)
    assert table_dates.days_of([as_text(day, order)], order) == (day - date(1970, 1, 1)).days


def test_texts_are_those_of_the_file_that_was_learned_from() -> None:
    cells = ["1.234,5", 1234.5, None, "?", "a,b"]
    assert texts_of({}, cells, decimal=",", missing=("?", "-")) == [
        "1234.5", "1234.5", "?", "?", "a,b",
    ]  # fmt: skip
    assert texts_of({}, cells, decimal=".", missing=()) == ["1.234,5", "1234.5", "", "?", "a,b"]
