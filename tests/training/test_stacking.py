"""Records that were read one by one become a batch, or are refused without telling about them."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from plumbline.training.stacking import Padding, PadTo, UnequalRecords, stack


def ones(*shape: int) -> Tensor:
    return torch.ones(1, *shape)


def stacked(*rows: Any, pad_to: PadTo | None = None) -> Any:
    return stack(rows, Padding(pad_to))


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


def test_every_nesting_is_kept() -> None:
    first = {"pair": Pair(ones(2), ones()), "list": [ones(3)], "kind": "text"}
    other = {"pair": Pair(2 * ones(2), ones()), "list": [ones(3)], "kind": "text"}
    batch = stacked(first, other)
    assert batch["pair"].x.tolist() == [[1, 1], [2, 2]]
    assert batch["list"][0].shape == (2, 3)
    assert batch["kind"] == "text"
    assert torch.equal(stacked(ones(2)), ones(2))


@pytest.mark.parametrize(
    ("pad_to", "x", "y"),
    [
        pytest.param(4, [1, 1, 0, 0], [1, 0, 0, 0], id="all"),
        pytest.param((4, -1), [1, 1, -1, -1], [1, -1, -1, -1], id="all-with-a-value"),
        pytest.param({"x": 3, "y": (2, 7)}, [1, 1, 0], [1, 7], id="by-name"),
        pytest.param({"x": 2, "y": 1}, [1, 1], [1], id="exactly"),
    ],
)
def test_padding(pad_to: PadTo, x: list[int], y: list[int]) -> None:
    batch = stacked({"x": ones(2).long(), "y": ones(1), "label": ones()}, pad_to=pad_to)
    assert batch["x"].tolist() == [x]
    assert batch["x"].dtype == torch.int64
    assert batch["y"].tolist() == [y]
    assert batch["label"].tolist() == [1]


def test_padding_by_place_and_within_a_field() -> None:
    batch = stacked(({"x": ones(1, 2), "m": ones(1).bool()}, ones()), pad_to={0: 2})
    assert batch[0]["x"].tolist() == [[[1, 1], [0, 0]]]
    assert batch[0]["m"].tolist() == [[True, False]]
    batch = stacked(({"x": ones(1), "m": ones(1)}, ones()), pad_to={"0.x": 2})
    assert batch[0]["x"].shape == (1, 2)
    assert batch[0]["m"].shape == (1, 1)


def test_a_length_for_a_field_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="'z'; the records have the fields 'x', 'y'"):
        stacked({"x": ones(2), "y": ones()}, pad_to={"z": 3})


@pytest.mark.parametrize(
    "pad_to", [0, -1, 2.5, True, "x", (3, "0"), (3, True), {"x": None}, {"x": (1, 2, 3)}]
)
def test_a_length_that_is_none(pad_to: Any) -> None:
    with pytest.raises(ValueError, match=r"give a length of at least 1"):
        Padding(pad_to)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([{"x": ones(731)}, {"x": ones(732)}], r"'x'.*pad_to=\{'x': 128\}", id="shape"),
        pytest.param([(ones(7),), (ones(7, 1),)], r"'0'.*shape", id="dimensions"),
        pytest.param([ones(731), ones(732)], r"pad_to=128", id="a-bare-tensor"),
        pytest.param([{"x": ones()}, {"x": ones().double()}], "'x'.*one type", id="dtype"),
        pytest.param([{"x": ones()}, {"z": ones()}], "different forms", id="names"),
        pytest.param([(ones(), 731), (ones(), 732)], "'1'.*int.*torch.tensor", id="not-tensors"),
        pytest.param([(ones(), 1), (ones(), 1.0)], "'1'.*int", id="types-of-numbers"),
        pytest.param([np.ones(2), np.ones(2)], "ndarray", id="arrays"),
        pytest.param([torch.ones(731)], r"batch of one", id="no-batch-dimension"),
        pytest.param([torch.tensor(1.0)], r"batch of one", id="a-number"),
        pytest.param([(ones(),), (1.0,)], r"batch of one", id="a-tensor-and-a-number"),
    ],
)
def test_what_does_not_fit_is_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(UnequalRecords, match=message) as found:
        stacked(*rows)
    assert "731" not in str(found.value)  # nothing of a record is told
    assert "732" not in str(found.value)


def test_a_record_longer_than_declared_is_refused() -> None:
    with pytest.raises(UnequalRecords, match=r"'0'.*longer than the 3.*cut records") as found:
        stacked((ones(2),), (ones(731),), pad_to=3)
    assert "731" not in str(found.value)
