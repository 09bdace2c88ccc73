"""A batch's bins: drawn by each record, whole in a chunk and a process, or none at all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from plumbline.gradients.summation import BIN, MOST_RECORDS
from plumbline.training.batches import PrivateBatch

EXPECTED = 600


def batch(
    ids: Tensor, most: int | None = None, share: tuple[int, int] = (0, 1), expected: int = EXPECTED
) -> PrivateBatch:
    owner = SimpleNamespace(
        plan=SimpleNamespace(expected_batch_size=expected),
        max_physical_batch=most,
        draws_key=lambda step: f"key {step}",
    )
    return PrivateBatch(0, ids, ids, owner, _share=share)  # type: ignore[arg-type]


def bins(one: PrivateBatch) -> set[tuple[int, ...]]:
    """The records of every bin, over all chunks."""
    found = set()
    for chunk in one.chunks():
        assert chunk.bins is not None
        for start, stop, fits in chunk.bins.spans:
            assert fits
            found.add(tuple(chunk.unit_ids[start:stop].tolist()))
    return found


@pytest.mark.parametrize("most", [None, 256, 300])
@pytest.mark.parametrize("shares", [1, 2, 3])
def test_a_record_less_touches_one_bin(most: int | None, shares: int) -> None:
    everybody = torch.arange(0, 3 * EXPECTED, 3)

    def every_bin(ids: Tensor) -> set[tuple[int, ...]]:
        parts = [bins(batch(ids, most, (which, shares))) for which in range(shares)]
        return set().union(*parts)

    whole = every_bin(everybody)
    assert sorted(one for bin in whole for one in bin) == everybody.tolist()
    for gone in (0, 311, len(everybody) - 1):
        kept = torch.cat([everybody[:gone], everybody[gone + 1 :]])
        fewer = every_bin(kept)
        (changed,) = whole - fewer
        assert fewer - whole == {tuple(one for one in changed if one != int(everybody[gone]))}


def test_chunks_keep_their_limit_and_shares_have_everybody_once() -> None:
    ids = torch.arange(5_000)  # many more than expected: all bins are too full
    for shares in (1, 2):
        seen = []
        for which in range(shares):
            for chunk in batch(ids, 256, (which, shares)).chunks():
                assert chunk.records <= 256
                assert chunk.bins is not None
                assert not any(fits for _, _, fits in chunk.bins.spans)
                seen += chunk.unit_ids.tolist()
        assert sorted(seen) == ids.tolist()


@pytest.mark.parametrize(("most", "share"), [(2 * BIN - 1, (0, 1)), (None, (0, 8))])
def test_small_chunks_and_shares_have_no_bins(most: int | None, share: tuple[int, int]) -> None:
    chunks = list(batch(torch.arange(EXPECTED), most, share).chunks())
    assert all(chunk.bins is None for chunk in chunks)
    ids = torch.cat([chunk.unit_ids for chunk in chunks])
    assert torch.equal(ids, torch.arange(EXPECTED)[share[0] :: share[1]])  # in order, in turn


def test_more_records_than_the_bound_is_proven_for_are_refused() -> None:
    with pytest.raises(ValueError, match="proven for 1,000,000 at most"):
        next(batch(torch.arange(MOST_RECORDS + 1)).chunks())
