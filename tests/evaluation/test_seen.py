"""Showing the model something else than a chunk's records: rows, and where the inputs are."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import Views
from plumbline.evaluation.base import Rows
from plumbline.evaluation.seen import record_of_rows, repeated, shown, with_inputs
from tests.methods.literal import CLIP, RECORDS, close, images, prepare, train


class Pair(NamedTuple):
    pixels: Tensor
    target: Tensor


def doubled(rows: Tensor, draws: Any = None) -> Tensor:
    return 2 * rows


def test_rows_of_a_record_are_side_by_side() -> None:
    data = {"x": torch.tensor([[1, 2], [3, 4]]), "y": torch.tensor([5, 6]), "name": "both"}
    found = repeated((data, torch.tensor(7)), 2)
    assert found[0]["x"].tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert found[0]["y"].tolist() == [5, 5, 6, 6]
    assert (found[0]["name"], int(found[1])) == ("both", 7)  # what has no rows stays
    assert record_of_rows(2, 2, torch.device("cpu")).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ((torch.ones(2), torch.zeros(2)), 0),
        ([torch.ones(2), torch.zeros(2)], -2),
        (Pair(torch.ones(2), torch.zeros(2)), 0),
        ({"pixels": torch.ones(2), "target": torch.zeros(2)}, "pixels"),
    ],
    ids=["tuple", "list, from behind", "named tuple", "mapping"],
)
def test_inputs_are_changed_where_they_are(data: Any, where: int | str) -> None:
    found = with_inputs(data, where, doubled)
    assert type(found) is type(data)
    inputs, target = found.values() if isinstance(found, dict) else found
    assert (inputs.tolist(), target.tolist()) == ([2, 2], [0, 0])
    first = data["pixels"] if isinstance(data, dict) else data[0]
    assert first.tolist() == [1, 1]  # the batch itself is as it was


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        ((1, 2), 2, "said to be at 2 of a batch of type tuple"),
        ((1, 2), -3, "said to be at -3 of a batch of type tuple"),
        ((1, 2), "x", "said to be at 'x' of a batch of type tuple"),
        (torch.ones(2), 0, "of a batch of type Tensor; they must be at a place of a tuple"),
        ({"b": 1, "a": 2}, "c", r"no field 'c'; it has \['a', 'b'\]\. Say where .*inputs=<name>"),
        ({"a": 1}, 0, "no field 0"),
    ],
)
def test_a_place_that_is_not_there_is_refused(data: Any, where: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_inputs(data, where, doubled)


def test_a_chunk_that_is_seen_otherwise_is_otherwise_the_same() -> None:
    private = prepare(pl.methods.dpsgd(CLIP), sensitive_features=[r % 3 for r in range(RECORDS)])
    chunk = next(next(iter(private)).chunks())
    x, y = chunk.data
    rows = Rows((2 * x, y), torch.arange(len(x)), torch.full((len(x),), 0.5))
    other: Any = shown(chunk, rows)
    assert (other.step, other.units, other.records) == (chunk.step, chunk.units, chunk.records)
    assert torch.equal(other.unit_ids, chunk.unit_ids)
    assert torch.equal(other.groups, chunk.groups)
    assert torch.equal(other.data[0], 2 * x)
    assert torch.equal(other.outputs(), chunk.outputs())  # of the records themselves
    assert other.parameters().keys() == chunk.parameters().keys()
    assert torch.equal(other.draws("a").integers(99), chunk.draws("a").integers(99))
    close(other.capture().sum(), chunk.capture(rows=rows).sum())
    vector = {name: torch.ones_like(p) for name, p in chunk.parameters().items()}
    close(other.hvp(vector).sum(), chunk.hvp(vector, rows=rows).sum())
    # By default half the loss of the doubled image; what is asked for explicitly goes before.
    plain = Rows((x, y), torch.arange(len(x)), torch.ones(len(x)))
    close(other.capture(rows=plain).sum(), chunk.capture().sum())


def test_a_batch_of_named_tuples_stays_one() -> None:
    """What torch's collate makes of records that are named tuples."""
    x, y = images()
    method = pl.methods.compose(evaluation=Views(doubled, 2), clipping=Flat(CLIP), noisy=False)
    named = train(method, None, [Pair(x[i], y[i]) for i in range(RECORDS)])
    close(named.updates, train(method, None, (x, y)).updates)
