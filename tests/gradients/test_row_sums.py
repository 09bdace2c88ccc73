"""Sums of rows in one pass: against numpy's, whatever the shapes and the number of threads."""

import numpy as np
import pytest
import torch

from plumbline.gradients import row_sums
from plumbline.gradients.row_sums import add_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("records", "width"), [(1, 1), (7, 5), (8, 4096), (21, 4097), (64, 9000)])
def test_the_sum_is_exact_to_float64s_rounding(
    records: int, width: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(records)
    rows = torch.randn(records, width, generator=generator).to(dtype)
    weights = torch.rand(records, generator=generator, dtype=torch.float64)
    total = torch.full((width,), 3.0, dtype=torch.float64)
    add_rows(rows, weights, total)
    exact = weights.numpy().astype(np.longdouble) @ rows.numpy().astype(np.longdouble) + 3
    size = weights.numpy() @ np.abs(rows.numpy()) + 3
    assert (np.abs(total.numpy() - exact) <= records * 2.0**-53 * size).all()


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sums, "_THREAD", 1)
    rows, weights = torch.randn(19, 10_001), torch.rand(19, dtype=torch.float64)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(torch.zeros(10_001, dtype=torch.float64))
        add_rows(rows, weights, found[-1])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
