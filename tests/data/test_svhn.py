import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from plumbline.data.files import DataError
from plumbline.data.svhn import svhn

MODULE = importlib.import_module("plumbline.data.svhn")


@pytest.fixture
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of other sizes and checksums than the published ones are taken."""
    stripped = tuple(replace(file, md5=None, size=None) for file in MODULE.SVHN)
    monkeypatch.setattr(MODULE, "SVHN", stripped)


@pytest.fixture
def written(tmp_path: Path) -> dict[str, np.ndarray]:
    (tmp_path / "svhn").mkdir()
    images = {}
    for name, labels in (("train", [1, 10, 9, 2]), ("test", [10, 5])):
        images[name] = np.random.default_rng(0).integers(0, 256, (32, 32, 3, len(labels)), np.uint8)
        content = {"X": images[name], "y": np.array(labels, np.uint8)[:, None]}
        savemat(tmp_path / "svhn" / f"{name}_32x32.mat", content, do_compression=True)
    return images


def test_svhn(tmp_path: Path, any_file: None, written: dict[str, np.ndarray]) -> None:
    loaded = svhn(folder=tmp_path)
    assert loaded.train.y.tolist() == [1, 0, 9, 2]  # 10 is a zero
    assert loaded.test.y.tolist() == [0, 5]
    assert torch.equal(loaded.train.sensitive_features, loaded.train.y)
    x, _ = loaded.train.fetch(torch.tensor([2, 0]))
    assert x.shape == (2, 3, 32, 32)
    for place, record in enumerate((2, 0)):
        for channel in range(3):
            expected = torch.from_numpy(written["train"][:, :, channel, record]) / 255
            torch.testing.assert_close(x[place, channel], expected)
    assert loaded.not_covered == ()


def test_normalised(tmp_path: Path, any_file: None, written: dict[str, np.ndarray]) -> None:
    plain, _ = svhn(folder=tmp_path).test.fetch(torch.arange(2))
    normalised, _ = svhn(folder=tmp_path, normalise=True).test.fetch(torch.arange(2))
    torch.testing.assert_close(normalised[:, 2] * 0.1970 + 0.4728, plain[:, 2])


def test_the_published_size_is_expected(tmp_path: Path, written: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match=r"train_32x32\.mat has .* bytes where 182,040,794"):
        svhn(folder=tmp_path)


def test_a_truncated_file_is_named(
    tmp_path: Path, any_file: None, written: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "svhn" / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=rf"{path} \(1,000 bytes, md5 checksum"):
        svhn(folder=tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"Z": np.zeros(3)}, "has neither X nor y where"),
        (
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))},
            r"has \{'X': \(32, 32, 3, 2\), 'y': \(3, 1\)\} where",
        ),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))}, "has .* n bytes"),
    ],
)
def test_another_file(
    tmp_path: Path,
    any_file: None,
    written: dict[str, np.ndarray],
    content: dict[str, np.ndarray],
    complaint: str,
) -> None:
    savemat(tmp_path / "svhn" / "train_32x32.mat", content)
    with pytest.raises(DataError, match=f"train_32x32.mat {complaint}"):
        svhn(folder=tmp_path)
