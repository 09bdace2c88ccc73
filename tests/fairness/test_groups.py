"""Groups of records, and intersections of several features."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from plumbline.fairness import group_records

SEX = torch.tensor([0, 1, 0, 1, -1])
RACE = ["white", "white", "other", None, "other"]


def test_sizes_and_rows() -> None:
    groups = group_records([1, 0, 1, None, 1], 5, {0: "a", 1: "b", 2: "c"})
    assert groups.sizes == {"a": 1, "b": 3, "c": 0, "unknown": 1}
    assert groups.rows("b").tolist() == [0, 2, 4]
    assert groups.rows("c").tolist() == []


@pytest.mark.parametrize("frame", [False, True])
def test_several_features_intersect(frame: bool) -> None:
    features: Any = {"sex": SEX, "race": RACE}
    if frame:
        features = pd.DataFrame({"sex": SEX.numpy(), "race": RACE})
    groups = group_records(features, 5, {"sex": ("m", "f")})
    assert groups.sizes == {
        "sex=m & race=other": 1,
        "sex=m & race=white": 1,
        "sex=m & race=unknown": 0,
        "sex=f & race=other": 0,
        "sex=f & race=white": 1,
        "sex=f & race=unknown": 1,
        "sex=unknown & race=other": 1,
        "sex=unknown & race=white": 0,
        "sex=unknown & race=unknown": 0,
    }
    assert [groups.labels[code] for code in groups.codes] == [
        "sex=m & race=white",
        "sex=f & race=white",
        "sex=m & race=other",
        "sex=f & race=unknown",
        "sex=unknown & race=other",
    ]


def test_one_feature_by_name() -> None:
    assert group_records({"sex": SEX}, 5).labels == ("sex=0", "sex=1", "sex=unknown")


def test_three_features() -> None:
    bits = np.arange(8)
    features = {"a": bits & 1, "b": bits >> 1 & 1, "c": bits >> 2}
    groups = group_records(features, 8)
    assert set(groups.sizes.values()) == {1}
    assert groups.labels[groups.codes[5]] == "a=1 & b=0 & c=1"


@pytest.mark.parametrize(
    ("features", "names", "message"),
    [
        pytest.param({}, None, "has no feature", id="none"),
        pytest.param({"sex": SEX}, {"gender": ("m", "f")}, r"any of \['sex'\]", id="other-name"),
        pytest.param({"sex": SEX}, ("m", "f"), "give names by feature", id="names-of-one"),
        pytest.param(
            {"sex": SEX, "race": [0]}, None, r"\['race'\] has 1 values for 5", id="lengths"
        ),
    ],
)
def test_features_that_do_not_fit_are_refused(features: Any, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_records(features, 5, names)
