"""Adult ("Census Income", Becker and Kohavi 1996), as Gradient Misalignment has it; in the package.

All 45,222 complete rows of adult.data and adult.test, without ``fnlwgt``, become 98 features.
Numbers are z-scored with the training part, or scaled to the ranges stated below; only the latter
leaves nothing outside epsilon. (Gradient Misalignment z-scores over the training and test parts.)
With 52 steps at the thresholds stated below, even a linear model can be non-linear in a number: a
capital gain of 8,000 says more than one of 2,000, and one of 90,000 hardly more.
"""

from __future__ import annotations

import functools
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from plumbline.data.base import Constant, Split, Splits, dataset
from plumbline.data.encoding import check_one_of, codes, one_hot, split, to_unit_range
from plumbline.data.files import DataError, File, reading

_BUNDLED = Path(__file__).parent / "bundled"
_FILES = (File("adult.data.xz", size=292208), File("adult.test.xz", size=151228))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COLUMNS = _words(
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex "
    "capital_gain capital_loss hours_per_week native_country income"
)
COMPLETE_ROWS = 45_222

# Mapped to [-1, 1]. Chosen without looking at the records: ages of the workforce, the codes of the
# education levels, half to one and a half of a 40-hour week. Most people have no capital gains or
# losses, so zero stays zero; the units are dollars.
PUBLIC_RANGES: dict[str, tuple[float, float]] = {
    "age": (16, 64),
    "education_num": (1, 16),
    "capital_gain": (-10_000, 10_000),
    "capital_loss": (-2_000, 2_000),
    "hours_per_week": (20, 60),
}

# Round numbers, evenly spaced over these ranges and somewhat beyond; chosen in the same way.
PUBLIC_STEPS: dict[str, tuple[int, ...]] = {
    "age": tuple(range(20, 80, 5)),
    "hours_per_week": tuple(range(10, 75, 5)),
    "capital_gain": (1, *range(1_000, 11_000, 1_000), 15_000, 20_000, 50_000),
    "capital_loss": (1, *range(250, 3_250, 250)),
}

# As adult.names lists them, without workclass "Never-worked": people who never worked have no
# occupation either, so no such row is complete.
CATEGORIES: dict[str, tuple[str, ...]] = {
    "workclass": _words(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay"
    ),
    "education": _words(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool"
    ),
    "marital_status": _words(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse"
    ),
    "occupation": _words(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces"
    ),
    "relationship": _words("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "native_country": _words(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands"
    ),
}

FEATURES: tuple[str, ...] = (
    *PUBLIC_RANGES,
    "sex=Female",
    "race=White",
    *(f"{name}={value}" for name, values in CATEGORIES.items() for value in values),
)
"""The names of the 98 features, in order."""
STEPS: tuple[str, ...] = tuple(
    f"{name}>={step}" for name, steps in PUBLIC_STEPS.items() for step in steps
)
"""The names of the 52 features that ``scaling="steps"`` adds."""

_KEEP_MALE = 14_695 / 30_527
_CLASSES, _GROUPS = ("<=50K", ">50K"), ("male", "female")


@dataset("adult")
def adult(
    *,
    scaling: Literal["training", "public", "steps"] = "training",
    balanced: bool = True,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Splits:
    """Adult: x ``[n, 98]``; y is 1 for an income above 50,000; groups are 0 male, 1 female.

    Args:
        scaling: "training" for z-scores with the training part's means and standard deviations,
            which epsilon does not cover; "public" for the ranges stated in this file; "steps" for
            these and 52 further features: whether a number reaches each threshold stated there.
        balanced: Keep each male with probability 14695/30527, so that the groups are about equal:
            about 29,390 records. False keeps all 45,222.
        test_fraction: The share of the records in the test part.
        seed: Decides which males are kept and which records are for training.
    """
    check_one_of("scaling", scaling, ("training", "public", "steps"))
    table = _encoded(_BUNDLED)
    generator = torch.Generator("cpu").manual_seed(seed)
    female = table.female
    draws = torch.rand(len(female), generator=generator, dtype=torch.float64)
    kept = torch.arange(len(female))
    if balanced:
        kept = kept[(female == 1) | (draws < _KEEP_MALE)]
    train, test = (kept[places] for places in split(len(kept), test_fraction, generator))
    x = torch.cat([_scaled(table.numbers, train, scaling), table.categories], 1)
    if scaling == "steps":
        x = torch.cat([x, _steps(table.numbers)], 1)
    y = table.y
    return Splits(
        "adult",
        Split(x[train], y[train], female[train]),
        Split(x[test], y[test], female[test]),
        classes=_CLASSES,
        groups=_GROUPS,
        constants=_constants(scaling, balanced),
        features=FEATURES + STEPS if scaling == "steps" else FEATURES,
    )


@dataclass(frozen=True)
class _Encoded:
    """What is the same for every split.

    Attributes:
        numbers: The columns of numbers, by name, each ``[n]``.
        categories: The other features, ``[n, 93]``.
        female: The groups, ``[n]``.
        y: The classes, ``[n]``.
    """

    numbers: Mapping[str, Tensor]
    categories: Tensor
    female: Tensor
    y: Tensor


@functools.lru_cache(maxsize=1)  # a comparison loads it for every run
def _encoded(folder: Path) -> _Encoded:
    columns = complete_rows(folder)
    female = codes(columns["sex"], ("Male", "Female"), "sex")
    white = torch.tensor([race == "White" for race in columns["race"]])
    hot = [one_hot(columns[name], values, name) for name, values in CATEGORIES.items()]
    return _Encoded(
        {name: torch.from_numpy(np.array(columns[name], np.int64)) for name in PUBLIC_RANGES},
        torch.cat([female[:, None], white[:, None], *hot], 1),
        female,
        codes(columns["income"], _CLASSES, "income"),
    )


def complete_rows(folder: Path = _BUNDLED) -> dict[str, list[str]]:
    """The columns of the rows without a "?", those of adult.data first."""
    lines: list[str] = []
    for file in _FILES:
        path = folder / file.path
        with reading(file, path):
            text = lzma.decompress(path.read_bytes()).decode("ascii")
        rows = text.replace(".\n", "\n").splitlines()
        lines += (line for line in rows if "?" not in line and ", " in line)
    # Split everything at once: much faster than line by line.
    cells = ", ".join(lines).split(", ")
    if len(lines) != COMPLETE_ROWS or len(cells) != len(lines) * len(COLUMNS):
        raise DataError(
            f"The bundled files in {folder} have {len(lines):,} complete rows where "
            f"{COMPLETE_ROWS:,} are expected. Install Plumbline again."
        )
    return {name: cells[place :: len(COLUMNS)] for place, name in enumerate(COLUMNS)}


def _scaled(numbers: Mapping[str, Tensor], train: Tensor, scaling: str) -> Tensor:
    """The five numbers of each row, ``[n, 5]``."""
    if scaling != "training":
        return torch.stack(
            [to_unit_range(numbers[name], ends) for name, ends in PUBLIC_RANGES.items()], 1
        )
    table = torch.stack([numbers[name] for name in PUBLIC_RANGES], 1).double()
    means, deviations = table[train].mean(0), table[train].std(0, correction=0)
    return ((table - means) / deviations).float()


def _steps(numbers: Mapping[str, Tensor]) -> Tensor:
    """Whether each number reaches each of its thresholds, ``[n, 52]``."""
    reached = [
        numbers[name][:, None] >= torch.tensor(steps) for name, steps in PUBLIC_STEPS.items()
    ]
    return torch.cat(reached, 1).float()


def _constants(scaling: str, balanced: bool) -> tuple[Constant, ...]:
    *first, last = PUBLIC_RANGES
    names = f"{', '.join(first)} and {last}"
    scales = (
        Constant(f"the ranges of {names}", "public")
        if scaling != "training"
        else Constant(f"the means and standard deviations of {names}", "training")
    )
    kept = "the probability 14695/30527 of keeping a male (Gradient Misalignment)"
    sampling = Constant(kept, "public")
    lists = Constant("the categories of the columns, as adult.names lists them", "public")
    thresholds = Constant(f"the thresholds of {', '.join(PUBLIC_STEPS)}", "public")
    found = (scales, lists, sampling) if balanced else (scales, lists)
    return (*found, thresholds) if scaling == "steps" else found
