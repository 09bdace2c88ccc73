"""The Dutch census of 2001 (IPUMS; Zliobaite et al. 2011), as Gradient Misalignment has it.

60,420 rows: ``sex`` and ``prev_residence_place`` are one feature each, the other nine columns are
one-hot, which makes 59 features; none is scaled. The counts are those of Le Quy et al. 2022, "A
survey on datasets for fairness-aware machine learning": 30,147 men, of whom 18,860 have a
prestigious occupation, and 30,273 women, of whom 9,903 do.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from plumbline.data.base import Constant, Split, Splits, dataset
from plumbline.data.encoding import codes, one_hot, split
from plumbline.data.files import DataError, File, locate, reading

ROWS = 60_420

# No checksum is published: the rows are counted and every cell is checked instead.
FILE = File(
    "dutch/dutch_census_2001.arff",
    url="https://raw.githubusercontent.com/tailequy/fairness_dataset/main/Dutch_census/"
    "dutch_census_2001.arff",
)

# The values that the survey documents; the file's header lists further census codes.
COLUMNS: dict[str, tuple[str, ...]] = {
    "sex": ("1", "2"),
    "age": ("4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"),
    "household_position": ("1110", "1121", "1122", "1131", "1132", "1140", "1210", "1220"),
    "household_size": ("111", "112", "113", "114", "125", "126"),
    "prev_residence_place": ("1", "2"),
    "citizenship": ("1", "2", "3"),
    "country_birth": ("1", "2", "3"),
    "edu_level": ("0", "1", "2", "3", "4", "5"),
    "economic_status": ("111", "112", "120"),
    "cur_eco_activity": ("111", "122", "124", *(str(code) for code in range(131, 140))),
    "Marital_status": ("1", "2", "3", "4"),
    "occupation": ("5_4_9", "2_1"),
}
_BINARY = ("sex", "prev_residence_place")
_HOT = tuple(name for name in COLUMNS if name not in (*_BINARY, "occupation"))

FEATURES: tuple[str, ...] = (
    *(f"{name}={COLUMNS[name][1]}" for name in _BINARY),
    *(f"{name}={value}" for name in _HOT for value in COLUMNS[name]),
)
"""The names of the 59 features, in order."""


@dataset("dutch", files=[FILE])
def dutch(
    *,
    folder: str | os.PathLike[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Splits:
    """The Dutch census: x ``[n, 59]``; y is 1 for a prestigious occupation (code 2_1).

    ``sensitive_features`` is the sex: 0 male, 1 female. There are 48,336 training records.

    Args:
        folder: The data folder.
        test_fraction: The share of the records in the test part.
        seed: Decides which records are for training.
    """
    columns = _read(folder)

    def coded(name: str) -> Tensor:
        return codes(columns[name], COLUMNS[name], name, _row)

    hot = [one_hot(columns[name], COLUMNS[name], name, _row) for name in _HOT]
    x = torch.cat([*(coded(name)[:, None] for name in _BINARY), *hot], 1)
    y, female = coded("occupation"), coded("sex")
    train, test = split(len(y), test_fraction, torch.Generator("cpu").manual_seed(seed))
    return Splits(
        "dutch",
        Split(x[train], y[train], female[train]),
        Split(x[test], y[test], female[test]),
        classes=("other occupation", "prestigious occupation"),
        groups=("male", "female"),
        constants=(Constant("the categories of the columns, as documented", "public"),),
        features=FEATURES,
    )


def _row(row: int) -> str:
    return f"row {row + 1} of {Path(FILE.path).name}"


def _read(folder: str | os.PathLike[str] | None) -> dict[str, list[str]]:
    (path,) = locate("dutch", [FILE], folder)
    with reading(FILE, path):
        head, _, body = path.read_text("ascii").partition("@data")
    words = (line.split() for line in head.splitlines())
    names = [line[1] for line in words if line[:1] == ["@attribute"] and len(line) > 1]
    lines = body.split()
    cells = ",".join(lines).split(",")
    if names != list(COLUMNS) or len(lines) != ROWS or len(cells) != ROWS * len(names):
        raise DataError(
            f"{path} has {len(lines):,} rows of the columns {', '.join(names) or '(none)'} where "
            f"{ROWS:,} rows of {', '.join(COLUMNS)} are expected: it is truncated, or not the "
            "published file. Delete it and get it again."
        )
    return {name: cells[place :: len(names)] for place, name in enumerate(names)}
