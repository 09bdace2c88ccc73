import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from plumbline.data.base import Splits
from plumbline.data.files import DataError, md5_of
from plumbline.data.idx import FASHION_MNIST, MNIST, fashion_mnist, mnist, mnist_8, read_idx
from tests.data.conftest import Require

# As published: how often each digit occurs.
TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="module")
def digits(require: Require) -> Splits:
    return mnist(folder=require(*(file.path for file in MNIST)))


@pytest.fixture(scope="module")
def clothes(require: Require) -> Splits:
    return fashion_mnist(folder=require(*(file.path for file in FASHION_MNIST)))


def test_mnist(digits: Splits) -> None:
    assert digits.train.y.bincount().tolist() == TRAIN
    assert digits.test.y.bincount().tolist() == TEST
    assert digits.train.x.shape == (60_000, 1, 28, 28)
    assert digits.train.x.dtype == torch.uint8
    assert torch.equal(digits.train.sensitive_features, digits.train.y)
    assert digits.classes == digits.groups == tuple("0123456789")
    assert digits.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert digits.test.y[:5].tolist() == [7, 2, 1, 0, 4]


def test_fashion_mnist(clothes: Splits) -> None:
    assert clothes.train.y.bincount().tolist() == [6000] * 10
    assert clothes.test.y.bincount().tolist() == [1000] * 10
    assert clothes.train.x.shape == (60_000, 1, 28, 28)
    assert clothes.classes[clothes.train.y[0]] == "Ankle boot"


def test_pixels_are_in_the_unit_interval(digits: Splits) -> None:
    x, y = digits.test.fetch(torch.arange(500))
    assert x.shape == (500, 1, 28, 28)
    assert x.dtype == torch.float32
    assert (x.min(), x.max()) == (0, 1)
    one, label = digits.test[3]
    assert torch.equal(one, x[3])
    assert label == y[3]
    assert digits.not_covered == ()


@pytest.mark.parametrize("load", [mnist, fashion_mnist])
def test_the_published_statistics_are_those_of_the_training_part(load, digits, clothes) -> None:
    normalised = load(normalise=True)
    x = normalised.train.prepare(normalised.train.x)
    # They are published with four digits, so the mean is off by 5e-5 / 0.31 at most.
    assert abs(float(x.mean())) < 2e-4
    assert float(x.std()) == pytest.approx(1, abs=2e-4)
    assert "mean" in normalised.constants[1].what
    assert normalised.constants[1].source == "public"


def test_mnist_8_has_few_eights_in_the_training_part_only(digits: Splits) -> None:
    unbalanced = mnist_8(seed=0)
    counts = unbalanced.train.y.bincount()
    assert counts[:8].tolist() + counts[9:].tolist() == TRAIN[:8] + TRAIN[9:]
    # Binomial(5851, 0.09): mean 526.6, standard deviation 21.9.
    assert 526.6 - 5 * 21.9 < counts[8] < 526.6 + 5 * 21.9
    assert round(len(unbalanced.train), -2) == 54_700
    assert unbalanced.test.y.bincount().tolist() == TEST
    assert torch.equal(unbalanced.train.sensitive_features, unbalanced.train.y)


def test_mnist_8_is_decided_by_the_seed(digits: Splits) -> None:
    first, again, other = mnist_8(seed=1), mnist_8(seed=1), mnist_8(seed=2)
    assert torch.equal(first.train.y, again.train.y)
    assert torch.equal(first.train.x, again.train.x)
    assert len(first.train) != len(other.train) or not torch.equal(first.train.x, other.train.x)


def linked(source: Path, folder: Path, changed: str, content: bytes) -> Path:
    """A data folder with MNIST's files, one of them with other content."""
    (folder / "mnist").mkdir()
    for file in MNIST:
        (folder / file.path).symlink_to(source / file.path)
    path = folder / "mnist" / changed
    path.unlink()
    path.write_bytes(content)
    return path


def test_a_truncated_file_is_refused_with_both_sizes(
    require: Require, digits: Splits, tmp_path: Path
) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    whole = (require() / "mnist" / name).read_bytes()
    path = linked(require(), tmp_path, name, whole[:1000])
    with pytest.raises(DataError, match=rf"{path} has 1,000 bytes where 1,648,877 are expected"):
        mnist(folder=tmp_path)


def test_a_damaged_file_is_refused_with_both_checksums(
    require: Require, digits: Splits, tmp_path: Path
) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    content = bytearray((require() / "mnist" / name).read_bytes())
    content[2000] ^= 1
    path = linked(require(), tmp_path, name, bytes(content))
    checksums = f"checksum {md5_of(path)} where ec29112dd5afa0611ce80d1b7f02629c is published"
    with pytest.raises(DataError, match=checksums):
        mnist(folder=tmp_path)
    with pytest.raises(DataError, match="published: ec29112dd5afa0611ce80d1b7f02629c"):
        mnist(folder=tmp_path, verify=False)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mnist/t10k-labels-idx1-ubyte\.gz .*amazonaws"):
        mnist(folder=tmp_path)


def written(path: Path, shape: tuple[int, ...], content: bytes, magic: bytes = b"") -> Path:
    header = (magic or bytes((0, 0, 8, len(shape)))) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(gzip.compress(header + content))
    return path


def test_idx_is_read_in_its_own_shape(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gz", (2, 3, 4), bytes(range(24)))
    assert np.array_equal(read_idx(path, 3), np.arange(24).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("shape", "content", "magic", "complaint"),
    [
        ((2, 3), bytes(5), b"", "2 x 3 = 6 bytes, but has 5"),
        ((2, 3), bytes(7), b"", "2 x 3 = 6 bytes, but has more"),
        ((2, 3), bytes(6), b"\0\0\x0d\2", "begins with the bytes 00 00 0d 02 where 00 00 08 02"),
        ((6,), bytes(6), b"", "begins with the bytes 00 00 08 01 where 00 00 08 02"),
        ((2**31, 2**31), bytes(6), b"", "more than its .* can hold"),
    ],
)
def test_a_file_that_is_not_what_its_header_says(
    tmp_path: Path, shape: tuple[int, ...], content: bytes, magic: bytes, complaint: str
) -> None:
    path = written(tmp_path / "a.gz", shape, content, magic)
    with pytest.raises(DataError, match=rf"{path} .*{complaint}"):
        read_idx(path, 2)
