"""One sensitive feature: names, order, and records whose group is unknown."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from plumbline.fairness import group_records


def groups(values: Any, names: Any = None) -> tuple[tuple[str, ...], list[str]]:
    """The groups' names, and each record's group by name."""
    found = group_records(values, len(values), names)
    return found.labels, [found.labels[code] for code in found.codes]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        pytest.param([10, 2, 10], ["10", "2", "10"], id="list"),
        pytest.param(np.array([10, 2, 10], np.int8), ["10", "2", "10"], id="array"),
        pytest.param(np.array([10.0, 2.0, 10.0]), ["10", "2", "10"], id="whole-floats"),
        pytest.param(torch.tensor([10, 2, 10]), ["10", "2", "10"], id="tensor"),
        pytest.param([torch.tensor(10), torch.tensor(2), 10], ["10", "2", "10"], id="tensors"),
        pytest.param(pd.Series([10, 2, 10], index=[5, 5, 7]), ["10", "2", "10"], id="series"),
        pytest.param(["b", "a", "b"], ["b", "a", "b"], id="strings"),
        pytest.param(np.array(["b", "a", "b"]), ["b", "a", "b"], id="string-array"),
        pytest.param(pd.Categorical(["b", "a", "b"]), ["b", "a", "b"], id="categorical"),
        pytest.param([True, False, True], ["True", "False", "True"], id="booleans"),
        pytest.param(("x", 3, "x"), ["x", "3", "x"], id="mixed"),
    ],
)
def test_values_of_any_kind(values: Any, labels: list[str]) -> None:
    order, found = groups(values)
    assert found == labels
    assert set(order) == set(labels)


def test_numbers_are_in_the_order_of_numbers() -> None:
    assert groups([10, 2, 1])[0] == ("1", "2", "10")


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0, None, 1, -1], id="list"),
        pytest.param([0, math.nan, 1, -1], id="nan"),
        pytest.param(np.array([0, math.nan, 1, -1]), id="array"),
        pytest.param(torch.tensor([0, math.nan, 1, -1]), id="tensor"),
        pytest.param(pd.Series([0, pd.NA, 1, -1], dtype="Int64"), id="pandas"),
        pytest.param(torch.tensor([0, -1, 1, -1]), id="integers"),
    ],
)
def test_unknown_groups_are_one_group_and_the_last(values: Any) -> None:
    assert groups(values) == (("0", "1", "unknown"), ["0", "unknown", "1", "unknown"])
    order, found = groups(values, names=("male", "female"))
    assert order == ("male", "female", "unknown")
    assert found == ["male", "unknown", "female", "unknown"]


def test_strings_may_be_missing_and_may_say_unknown() -> None:
    assert groups(["z", None, "a", "unknown"]) == (
        ("a", "z", "unknown"),
        ["z", "unknown", "a", "unknown"],
    )
    assert groups(["None", "nan", "-1"])[0] == ("-1", "None", "nan")  # these are names


def test_a_named_minus_one_is_a_group() -> None:
    names = {-1: "without", 1: "with"}
    assert groups([1, -1, None], names) == (
        ("without", "with", "unknown"),
        ["with", "without", "unknown"],
    )


def test_minus_one_and_one_without_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"values -1 and 1, .* give names"):
        groups(torch.tensor([1, -1, 1]))
    assert groups([1, -1], {1: "with"})[0] == ("with", "unknown")


def test_names_declare_groups_in_their_order() -> None:
    assert groups([2, 0], ("a", "b", "c")) == (("a", "b", "c"), ["c", "a"])
    assert groups([2, 0], {2: "c", 0: "a", 5: "empty"})[0] == ("c", "a", "empty")
    assert groups([0, 1, 2], {0: "white", 1: "other", 2: "other"}) == (
        ("white", "other"),
        ["white", "other", "other"],
    )
    assert groups([True, False], ("no", "yes")) == (("no", "yes"), ["yes", "no"])


@pytest.mark.parametrize(
    ("values", "names", "message"),
    [
        pytest.param([0, 3], ("a", "b"), r"of record 1 has no name; names has \[0, 1\]", id="name"),
        pytest.param(
            [0.5, 1.5],
            None,
            "of record 0 .* not whole; .*into bins",
            id="continuous",
        ),
        pytest.param(
            [math.inf, 1], None, "of record 0 is a number that is not whole", id="infinite"
        ),
        pytest.param(np.zeros((2, 2)), None, r"shape \(2, 2\).*mapping", id="matrix"),
        pytest.param(torch.zeros(2, 1), None, r"shape \(2, 1\)", id="tensor-matrix"),
    ],
)
def test_what_makes_no_groups_is_refused(values: Any, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        groups(values, names)


def test_every_record_has_a_value() -> None:
    with pytest.raises(ValueError, match="has 2 values for 3 test records"):
        group_records([0, 1], 3)
