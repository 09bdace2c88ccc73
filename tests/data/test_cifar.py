import importlib
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plumbline.data.base import Splits
from plumbline.data.cifar import CIFAR10, CIFAR10_CLASSES, CIFAR100_CLASSES, cifar10, cifar100
from plumbline.data.files import DataError, md5_of
from tests.data.conftest import Require

MODULE = importlib.import_module("plumbline.data.cifar")
REAL = [f"cifar10/cifar-10-batches-bin/{name}.bin" for name in ("data_batch_1", "data_batch_2")]
REAL_TEST = "cifar10/cifar-10-batches-bin/test_batch.bin"


@pytest.fixture(scope="module")
def partial(require: Require) -> Splits:
    return cifar10(folder=require(*REAL, REAL_TEST), allow_partial=True)


def test_what_is_there_of_cifar_10_is_loaded_when_asked(partial: Splits) -> None:
    batches = [partial.train.y[start : start + 10_000].bincount() for start in (0, 10_000)]
    assert batches[0].tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert batches[1].tolist() == [984, 1007, 1010, 995, 1010, 988, 1008, 1026, 987, 985]
    assert partial.test.y.bincount().tolist() == [1000] * 10
    assert partial.test.x.shape == (10_000, 3, 32, 32)
    assert [partial.classes[label] for label in partial.train.y[:3]] == ["frog", "truck", "truck"]
    assert torch.equal(partial.train.sensitive_features, partial.train.y)
    assert partial.groups == CIFAR10_CLASSES


def test_records_are_those_in_the_files(partial: Splits, require: Require) -> None:
    index = torch.tensor([0, 19_999, 10_000, 9_999, 1234])
    x, y = partial.train.fetch(index)
    for image, label, number in zip(x, y, index.tolist(), strict=True):
        with (require() / REAL[number // 10_000]).open("rb") as stream:
            stream.seek(number % 10_000 * 3073)
            record = stream.read(3073)
        assert record[0] == label
        assert [round(value * 255) for value in image.flatten().tolist()] == list(record[1:])
    assert 0 <= x.min() < x.max() <= 1


def test_without_being_asked_the_missing_batches_are_named(
    partial: Splits, require: Require
) -> None:
    if any((require() / file.path).is_file() for file in CIFAR10[0][2:]):
        pytest.skip("the data folder has all batches")
    with pytest.raises(DataError, match=r"data_batch_3\.bin") as caught:
        cifar10(folder=require())
    message = str(caught.value)
    assert "data_batch_5.bin" in message
    assert "data_batch_2.bin" not in message
    assert "allow_partial=True" in message


def test_the_files_are_mapped_and_not_read_into_memory(require: Require) -> None:
    folder = require(*REAL, REAL_TEST)
    tracemalloc.start()
    try:
        loaded = cifar10(folder=folder, allow_partial=True)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Labels and record numbers take half a megabyte, checking a file one; the files are 92 MB.
    assert taken < 5e6
    assert len(loaded.train) == 20_000


def test_the_published_statistics_are_near_those_of_what_is_there(require: Require) -> None:
    loaded = cifar10(folder=require(*REAL, REAL_TEST), allow_partial=True, normalise=True)
    x, _ = loaded.train.fetch(torch.arange(0, 20_000, 10))
    # 2,000 images: their means vary by about 0.5 / sqrt(2000).
    assert x.mean((0, 2, 3)).abs().max() < 0.05
    assert (x.std((0, 2, 3)) - 1).abs().max() < 0.05
    assert [one.source for one in loaded.constants] == ["public", "public"]


def changed(require: Require, folder: Path, content: bytes) -> Path:
    """A data folder with a test batch of other content."""
    (folder / REAL_TEST).parent.mkdir(parents=True)
    (folder / REAL[0]).symlink_to(require(*REAL, REAL_TEST) / REAL[0])
    (folder / REAL_TEST).write_bytes(content)
    return folder / REAL_TEST


def test_a_truncated_batch_is_refused_with_both_sizes(require: Require, tmp_path: Path) -> None:
    path = changed(require, tmp_path, bytes(3073))
    with pytest.raises(DataError, match=rf"{path} has 3,073 bytes where 30,730,000 are expected"):
        cifar10(folder=tmp_path, allow_partial=True)


def test_a_damaged_batch_is_refused_with_both_checksums(require: Require, tmp_path: Path) -> None:
    content = bytearray((require(*REAL, REAL_TEST) / REAL_TEST).read_bytes())
    content[5_000_000] ^= 1
    path = changed(require, tmp_path, bytes(content))
    both = f"checksum {md5_of(path)} where 803d5f7f4d78ea53de84dbe85f74fb6d"
    with pytest.raises(DataError, match=both):
        cifar10(folder=tmp_path, allow_partial=True)


# What follows is made here: CIFAR-100.


@pytest.fixture
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of other sizes and checksums than the published ones are taken."""
    for name in ("CIFAR10", "CIFAR100"):
        stripped = tuple(
            tuple(replace(file, md5=None, size=None) for file in part)
            for part in getattr(MODULE, name)
        )
        monkeypatch.setattr(MODULE, name, stripped)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 3072), np.uint8)


def written_cifar_100(folder: Path) -> np.ndarray:
    folder = folder / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    pixels = images(5)
    coarse, fine = [0, 19, 3, 4, 5], [99, 0, 50, 7, 8]
    for name, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        header = np.array([coarse[rows], fine[rows]], np.uint8).T
        np.hstack([header, pixels[rows]]).tofile(folder / f"{name}.bin")
    return pixels.reshape(-1, 3, 32, 32)


def test_cifar_100(tmp_path: Path, any_file: None) -> None:
    pixels = written_cifar_100(tmp_path)
    loaded = cifar100(folder=tmp_path)
    assert loaded.train.y.tolist() == [99, 0, 50]
    assert loaded.test.y.tolist() == [7, 8]
    assert loaded.train.sensitive_features.tolist() == [0, 19, 3]
    assert torch.equal(loaded.train.x[:], torch.from_numpy(pixels[:3]))
    assert torch.equal(loaded.test.x[:], torch.from_numpy(pixels[3:]))
    assert (len(loaded.classes), len(loaded.groups)) == (100, 20)
    assert loaded.classes == tuple(sorted(CIFAR100_CLASSES))


def test_published_sizes_are_expected_of_cifar_100(tmp_path: Path) -> None:
    written_cifar_100(tmp_path)
    with pytest.raises(DataError, match=r"train.bin has 9,222 bytes where 153,700,000"):
        cifar100(folder=tmp_path)


def test_a_file_that_ends_within_a_record(tmp_path: Path, any_file: None) -> None:
    written_cifar_100(tmp_path)
    path = tmp_path / "cifar100" / "cifar-100-binary" / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{path} has 6,147 bytes where a multiple of 3,074"):
        cifar100(folder=tmp_path)


def test_labels_out_of_range_are_another_file(tmp_path: Path, any_file: None) -> None:
    written_cifar_100(tmp_path)
    path = tmp_path / "cifar100" / "cifar-100-binary" / "test.bin"
    path.write_bytes(bytes([20]) + path.read_bytes()[1:])
    with pytest.raises(DataError, match=rf"{path} has labels outside of 0 to 19"):
        cifar100(folder=tmp_path)
