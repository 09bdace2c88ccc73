"""Which group each test record belongs to: names, intersections, unknown groups.

With several sensitive features the groups are their intersections, including empty ones. Records
of unknown group are a group like any other. Groups of fewer than 20 records are too small to judge:
they are shown, but left out of gaps and worst groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from plumbline.fairness.features import FeatureNames, Values, groups_of_feature
from plumbline.fairness.outcomes import Integers

MINIMUM_SIZE = 20

SensitiveFeatures = Values | Mapping[str, Values]
"""One feature's values; or several by name (or a pandas DataFrame), which are intersected."""

Names = FeatureNames | Mapping[str, FeatureNames]
"""``FeatureNames``; for several features, by feature."""


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups, and which records are in them.

    Attributes:
        labels: The groups' names, in order; "sex=female & race=other" for intersections.
        codes: The position of each record's group in ``labels``, ``[n]``.
    """

    labels: tuple[str, ...]
    codes: Integers

    @property
    def sizes(self) -> dict[str, int]:
        """The number of records of each group."""
        counts = np.bincount(self.codes, minlength=len(self.labels))
        return dict(zip(self.labels, counts.tolist(), strict=True))

    def rows(self, label: str) -> Integers:
        """The records of a group."""
        return np.flatnonzero(self.codes == self.labels.index(label)).astype(np.int64)


def group_records(
    sensitive_features: SensitiveFeatures, records: int, names: Names | None = None
) -> Groups:
    """Puts records into groups.

    Args:
        sensitive_features: The group of each record, ``[n]``, or several features by name.
        records: n.
        names: The groups' names by value. Named groups are shown even if empty, in the order of
            the names; if -1 has a name, it is a group like any other.
    """
    if isinstance(sensitive_features, pd.DataFrame):
        sensitive_features = {str(name): sensitive_features[name] for name in sensitive_features}
    if not isinstance(sensitive_features, Mapping):
        one: Any = names
        labels, codes = groups_of_feature("sensitive_features", sensitive_features, records, one)
        return Groups(tuple(labels), codes)
    if not sensitive_features:
        raise ValueError("sensitive_features has no feature; give at least one, by name.")
    by_feature: dict[str, Any] = _names_by_feature(names, sensitive_features)
    features = [
        groups_of_feature(f"sensitive_features[{name!r}]", values, records, by_feature.get(name))
        for name, values in sensitive_features.items()
    ]
    every = itertools.product(
        *[
            [f"{name}={label}" for label in labels]
            for name, (labels, _) in zip(sensitive_features, features, strict=True)
        ]
    )
    shape = tuple(len(labels) for labels, _ in features)
    codes = np.ravel_multi_index(tuple(codes for _, codes in features), shape)
    return Groups(tuple(" & ".join(parts) for parts in every), np.asarray(codes, np.int64))


def _names_by_feature(names: Names | None, features: Mapping[str, Any]) -> dict[str, Any]:
    if names is None:
        return {}
    if not isinstance(names, Mapping) or not set(names) <= set(features):
        raise ValueError(
            f"names is {names!r}; for several sensitive features give names by feature, for any of "
            f"{list(features)}."
        )
    return dict(names)
