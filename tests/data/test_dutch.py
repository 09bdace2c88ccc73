from pathlib import Path

import pytest
import torch

from plumbline.data.base import Splits
from plumbline.data.dutch import COLUMNS, FEATURES, dutch
from plumbline.data.files import DataError
from tests.data.conftest import Require

NAME = "dutch/dutch_census_2001.arff"


@pytest.fixture(scope="module")
def splits(require: Require) -> Splits:
    return dutch(folder=require(NAME))


def test_its_size(splits: Splits) -> None:
    assert splits.train.x.shape == (48_336, 59)
    assert splits.test.x.shape == (12_084, 59)
    assert splits.features == FEATURES
    assert splits.groups == ("male", "female")


def test_the_counts_are_those_of_the_literature(splits: Splits) -> None:
    # Le Quy et al. 2022: men and women, and how many of them have a prestigious occupation.
    female = torch.cat([part.sensitive_features for part in (splits.train, splits.test)])  # type: ignore[misc]
    high = torch.cat([splits.train.y, splits.test.y])
    assert [int((female == sex).sum()) for sex in (0, 1)] == [30_147, 30_273]
    assert [int(high[female == sex].sum()) for sex in (0, 1)] == [18_860, 9_903]


def test_two_columns_are_binary_and_nine_one_hot(splits: Splits) -> None:
    x, female = splits.train.x, splits.train.sensitive_features
    assert set(x.unique().tolist()) == {0, 1}
    assert female is not None
    torch.testing.assert_close(x[:, 0], female.float())
    assert FEATURES[:3] == ("sex=2", "prev_residence_place=2", "age=4")
    assert set(x[:, 2:].sum(1).tolist()) == {9}
    both = torch.cat([splits.train.x, splits.test.x]).sum(0)
    assert int(both[FEATURES.index("prev_residence_place=2")]) == 1_477
    assert int(both[FEATURES.index("age=15")]) == 62
    assert int(both.min()) > 0


def test_nothing_is_taken_from_the_records(splits: Splits) -> None:
    assert splits.not_covered == ()


def header() -> str:
    return "".join(f"@attribute {name} {{1,2}}\n" for name in COLUMNS) + "\n@data\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (header() + "1,4,1110,111,1,1,1,0,111,111,1,2_1\n", "has 1 rows of the columns sex, age"),
        (header(), "has 0 rows"),
        ("", r"of the columns \(none\)"),
        ("1,2,3\n", r"of the columns \(none\)"),
    ],
    ids=["truncated", "no rows", "empty", "another file"],
)
def test_another_file_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "dutch").mkdir()
    (tmp_path / NAME).write_text(content)
    with pytest.raises(DataError, match=rf"{complaint}.* where 60,420 rows of sex, age"):
        dutch(folder=tmp_path)


def test_an_unknown_code_is_named(tmp_path: Path) -> None:
    (tmp_path / "dutch").mkdir()
    row = "1,4,1110,111,1,1,1,0,111,111,1,2_1\n"
    rows = [row] * 60_420
    rows[6] = row.replace("1,4,", "1,40,", 1)
    (tmp_path / NAME).write_text(header() + "".join(rows))
    with pytest.raises(DataError, match="'age' has a value in row 7"):
        dutch(folder=tmp_path)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dutch").mkdir()
    (tmp_path / NAME).write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="damaged"):
        dutch(folder=tmp_path)


def test_a_missing_file_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dutch_census_2001\.arff .*\(from https://"):
        dutch(folder=tmp_path)
