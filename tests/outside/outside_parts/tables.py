"""Data sets in several forms."""

from __future__ import annotations

import pandas
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from plumbline.data import Constant, Split, Splits, dataset

FEATURES = 4


def _records(records: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(records, FEATURES, generator=draw)
    groups = (torch.rand(records, generator=draw) < 0.3).long()
    return x, ((x[:, 0] + 0.5 * groups) > 0).long(), groups


@dataset
def our_patients(*, records: int = 200, seed: int = 0) -> Splits:
    """Two classes and two groups, registered as "our-patients"."""
    parts = [Split(*_records(count, seed + place)) for place, count in enumerate((records, 80))]
    scale = Constant("the scale of x", "public")
    return Splits("our-patients", parts[0], parts[1], ("well", "ill"), ("a", "b"), (scale,))


def tensors(records: int = 100) -> tuple[Tensor, Tensor, Tensor]:
    """``(x, y, groups)``, to be split."""
    return _records(records, 0)


def two_parts() -> tuple[TensorDataset, TensorDataset]:
    """A training and a test part."""
    return TensorDataset(*_records(60, 0)), TensorDataset(*_records(20, 1))


def frame() -> pandas.DataFrame:
    """A table in memory."""
    x, y, groups = _records(50, 0)
    return pandas.DataFrame(
        {
            "first": x[:, 0].tolist(),
            "second": x[:, 1].tolist(),
            "sex": ["f" if group else "m" for group in groups.tolist()],
            "ill": ["yes" if one else "no" for one in y.tolist()],
        }
    )


PATIENTS = our_patients()
