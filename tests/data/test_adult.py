import hashlib
import lzma
from collections import Counter
from pathlib import Path

import pytest
import torch

from plumbline.data import Splits, load
from plumbline.data import adult as module
from plumbline.data.adult import COLUMNS, FEATURES, PUBLIC_RANGES, adult, complete_rows
from plumbline.data.files import DataError
from tests.data.conftest import Require

BUNDLED = Path(module.__file__).parent / "bundled"


@pytest.fixture(scope="module")
def everything() -> Splits:
    return adult(balanced=False)


def test_the_bundled_files_are_the_published_ones() -> None:
    published = {
        "adult.data.xz": "5d7c39d7b8804f071cdd1f2a7c460872",
        "adult.test.xz": "35238206dfdf7f1fe215bbb874adecdc",
    }
    for name, md5 in published.items():
        content = lzma.decompress((BUNDLED / name).read_bytes())
        assert hashlib.md5(content).hexdigest() == md5
    assert sum(path.stat().st_size for path in BUNDLED.iterdir()) < 1_000_000
    attribution = (BUNDLED / "ATTRIBUTION.md").read_text()
    assert "Becker, B. & Kohavi, R. (1996)" in attribution
    assert "CC BY 4.0" in attribution


def test_the_bundled_files_are_those_of_the_data_folder(require: Require) -> None:
    folder = require("adult/adult.data", "adult/adult.test")
    for name in ("adult.data", "adult.test"):
        content = lzma.decompress((BUNDLED / f"{name}.xz").read_bytes())
        assert content == (folder / "adult" / name).read_bytes()


def test_the_complete_rows() -> None:
    columns = complete_rows()
    assert tuple(columns) == COLUMNS
    assert {len(cells) for cells in columns.values()} == {45_222}
    assert Counter(columns["sex"]) == {"Male": 30_527, "Female": 14_695}
    assert Counter(columns["income"]) == {"<=50K": 34_014, ">50K": 11_208}
    assert columns["age"][:2] == ["39", "50"]


def test_all_of_it(everything: Splits) -> None:
    train, test = everything.train, everything.test
    assert train.x.shape == (36_178, 98)
    assert test.x.shape == (9_044, 98)
    assert everything.classes == ("<=50K", ">50K")
    assert everything.groups == ("male", "female")
    assert int(train.y.sum() + test.y.sum()) == 11_208
    assert train.sensitive_features is not None
    assert test.sensitive_features is not None
    assert int(train.sensitive_features.sum() + test.sensitive_features.sum()) == 14_695
    assert train.x.dtype == torch.float32
    assert train.y.dtype == train.sensitive_features.dtype == torch.int64


def test_every_feature_is_where_its_name_says(everything: Splits) -> None:
    assert everything.features == FEATURES
    assert len(FEATURES) == 98
    x = torch.cat([everything.train.x, everything.test.x])
    female = torch.cat(
        [everything.train.sensitive_features, everything.test.sensitive_features]  # type: ignore[list-item]
    )
    torch.testing.assert_close(x[:, FEATURES.index("sex=Female")], female.float())
    columns = complete_rows()
    for name in ("race", "workclass", "education", "native_country"):
        counts = Counter(columns[name])
        found = {
            feature.removeprefix(f"{name}="): int(x[:, place].sum())
            for place, feature in enumerate(FEATURES)
            if feature.startswith(f"{name}=")
        }
        assert found == ({"White": counts["White"]} if name == "race" else counts)
    hot = x[:, 7:]
    assert set(hot.unique().tolist()) == {0, 1}
    assert set(hot.sum(1).tolist()) == {6}  # workclass, education, marital, occupation, ...


def test_z_scores_are_those_of_the_training_part(everything: Splits) -> None:
    numbers = everything.train.x[:, :5].double()
    torch.testing.assert_close(numbers.mean(0), torch.zeros(5).double(), rtol=0, atol=1e-6)
    deviations = numbers.std(0, correction=0)
    torch.testing.assert_close(deviations, torch.ones(5).double(), rtol=0, atol=1e-6)
    assert not torch.allclose(everything.test.x[:, :5].mean(0), torch.zeros(5), atol=1e-4)
    (line,) = everything.not_covered
    assert "means and standard deviations of age, education_num, capital_gain" in line


def test_public_ranges_leave_nothing_uncovered() -> None:
    splits = adult(scaling="public", balanced=False)
    assert splits.not_covered == ()
    assert any("ranges of age" in str(one) for one in splits.constants)
    ages = torch.tensor([float(age) for age in complete_rows()["age"]])
    expected = ((ages - 40) / 24).clamp(-1, 1).sort().values
    found = torch.cat([splits.train.x, splits.test.x])[:, 0].sort().values
    torch.testing.assert_close(found, expected)
    assert list(PUBLIC_RANGES) == list(FEATURES[:5])


def test_steps_are_added_to_the_public_ranges() -> None:
    splits, plain = (adult(scaling=scaling, balanced=False) for scaling in ("steps", "public"))
    x, names = splits.train.x, list(splits.features)
    assert x.shape[1] == len(names) == 150
    assert torch.equal(x[:, :98], plain.train.x)
    assert {constant.source for constant in splits.constants} == {"public"}
    age = (x[:, names.index("age")] + 1) / 2 * (64 - 16) + 16
    for step in (20, 45, 60):
        reached = x[:, names.index(f"age>={step}")]
        assert torch.equal(reached, (age >= step - 1e-3).float())
    gains = [name for name in names if name.startswith("capital_gain>=")]
    counts = [int(x[:, names.index(name)].sum()) for name in gains]
    assert counts == sorted(counts, reverse=True)
    assert gains[0] == "capital_gain>=1"
    assert 0 < counts[-1] < counts[0] < len(x) / 5  # few have any


@pytest.mark.parametrize("seed", [0, 1])
def test_balanced_groups_are_about_equal(seed: int) -> None:
    splits = adult(seed=seed)
    features = [splits.train.sensitive_features, splits.test.sensitive_features]
    female = torch.cat(features)  # type: ignore[arg-type]
    assert int(female.sum()) == 14_695
    # 14,695 males are expected; six standard deviations of that binomial count are 524.
    assert abs(len(female) - 2 * 14_695) < 524
    assert len(splits.train) == len(female) - round(0.2 * len(female))
    assert abs(len(splits.train) - 23_512) < 420


def test_the_seed_decides_everything() -> None:
    first, again, other = adult(seed=3), adult(seed=3), adult(seed=4)
    assert torch.equal(first.train.x, again.train.x)
    assert torch.equal(first.test.y, again.test.y)
    assert first.train.x.shape != other.train.x.shape


def test_it_is_found_by_name() -> None:
    assert len(load("adult", balanced=False, test_fraction=0.5).test) == 22_611


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ValueError, match="scaling is 'none'; it must be one of 'training'"):
        adult(scaling="none")  # type: ignore[arg-type]


def test_a_damaged_bundle_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("adult.data.xz", "adult.test.xz"):
        (tmp_path / name).write_bytes((BUNDLED / name).read_bytes())
    monkeypatch.setattr(module, "_BUNDLED", tmp_path)
    content = (tmp_path / "adult.test.xz").read_bytes()
    (tmp_path / "adult.test.xz").write_bytes(content[:-1000])
    with pytest.raises(DataError, match=r"adult\.test\.xz cannot be read .* \(expected 151,228\)"):
        adult()
    (tmp_path / "adult.test.xz").write_bytes(lzma.compress(b"|1x3 Cross validator\n"))
    with pytest.raises(DataError, match="30,162 complete rows where 45,222 are expected"):
        adult()
