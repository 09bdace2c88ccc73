"""The norms' distribution against numpy, group by group."""

import numpy as np
import pytest
import torch

from plumbline.clipping import Flat, Unclipped
from plumbline.diagnostics import norms
from plumbline.diagnostics.norms import QUANTILES
from tests.diagnostics.problems import BAD, assert_undefined, dense, network, normal, rows


def of_norm(*lengths: float) -> torch.Tensor:
    """Gradients of these norms, in different directions."""
    directions = torch.nn.functional.normalize(normal(len(lengths), 3), dim=1)
    return directions * torch.tensor(lengths, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_networks_norms_are_those_of_its_dense_gradients(dtype: torch.dtype) -> None:
    groups = torch.arange(24) % 3
    sample = network(dtype=dtype).sample(Flat(3.5), groups=groups)
    lengths = dense(sample).norm(dim=1).numpy()
    found = norms(sample)
    near = {"rel": 1e-9 if dtype == torch.float64 else 1e-5}
    assert list(found.quantiles) == list(QUANTILES)
    expected = np.quantile(lengths, QUANTILES).tolist()
    assert list(found.quantiles.values()) == pytest.approx(expected, **near)
    assert found.mean == pytest.approx(lengths.mean(), **near)
    assert found.largest == pytest.approx(lengths.max(), **near)
    assert found.polarisation == pytest.approx(expected[3] / expected[1], **near)
    assert found.norm_of_mean == pytest.approx(float(dense(sample).mean(0).norm()), **near)
    assert found.clipped == pytest.approx((lengths > 3.5).mean())
    assert 0 < found.clipped < 1
    for group in range(3):
        own = lengths[groups == group]
        assert found.by_group[group] == pytest.approx(np.median(own), **near)
        assert found.clipped_by_group[group] == pytest.approx((own > 3.5).mean())
    assert found.not_finite == 0


def test_by_hand() -> None:
    sample = rows(of_norm(1, 2, 3, 4, 5), Flat(2.5), groups=torch.tensor([7, 7, 9, 9, 9]))
    found = norms(sample)
    assert found.quantiles == pytest.approx({0.05: 1.2, 0.25: 2, 0.5: 3, 0.75: 4, 0.95: 4.8})
    assert (found.mean, found.largest) == (pytest.approx(3), pytest.approx(5))
    assert found.polarisation == pytest.approx(2)
    assert found.clipped == pytest.approx(3 / 5)
    assert found.by_group == pytest.approx({7: 1.5, 9: 4})
    assert found.clipped_by_group == pytest.approx({7: 0, 9: 1})


def test_a_norm_at_the_bound_is_not_clipped() -> None:
    found = norms(rows(torch.tensor([[0.5, 0], [0, 0.25]]).double(), Flat(0.75)))
    assert found.clipped == 0
    assert norms(rows(normal(4, 3), Unclipped())).clipped == 0


def test_what_cannot_be_told() -> None:
    zeros = norms(BAD["every gradient zero"]())
    assert zeros.quantiles[0.5] == 0
    assert_undefined(zeros.polarisation, "a quarter of the gradients are zero")
    spoilt = norms(BAD["a group is not finite"]())
    assert spoilt.not_finite == 2
    assert_undefined(spoilt.by_group[1], "group 1 has no finite gradient")
    assert_undefined(spoilt.clipped_by_group[1], "group 1 has no finite gradient")
    assert isinstance(spoilt.by_group[0], float)
    lost = norms(BAD["no record is finite"]())
    assert lost.not_finite == 6
    assert_undefined(lost.quantiles[0.25], "no record has a finite gradient")
    assert norms(BAD["no records"]()).by_group == {}
