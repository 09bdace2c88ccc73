"""A run's data and features, and a model judged on them."""

from pathlib import Path

import pytest
import torch

from plumbline.data import Part
from plumbline.experiments import loading
from tests.experiments.small import spec


def test_measuring_leaves_the_model_in_its_mode() -> None:
    one = spec()
    splits = loading.load_data(one)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(98, 2))
    first = loading.measure(model, splits.test, splits.groups)
    assert model.training
    assert loading.measure(model, splits.test, splits.groups) == first


def test_features_of_a_selection_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def features(part: Part, **_: object) -> torch.Tensor:
        seen.append(len(part))
        return torch.arange(len(part)).float()[:, None]

    monkeypatch.setattr(loading.scattering, "features", features)
    whole = Part(torch.zeros(10, 1, 8, 8), torch.arange(10))
    chosen = whole.select(torch.tensor([7, 2]))
    scattered = loading._scattered(chosen, 2)
    assert seen == [10]
    assert scattered.x.flatten().tolist() == [7.0, 2.0]  # type: ignore[union-attr]
    assert scattered.y.tolist() == [7, 2]
