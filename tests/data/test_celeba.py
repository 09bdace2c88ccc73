import importlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from plumbline.data.celeba import celeba
from plumbline.data.files import DataError
from tests.data.conftest import Require

MODULE = importlib.import_module("plumbline.data.celeba")
REAL = ("celeba/img_align_celeba.zip", "celeba/list_attr_celeba.csv")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celeba")


@pytest.fixture
def real(require: Require, kept: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder; its images are decoded once for all tests here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    return require(*REAL)


def both(splits, name: str) -> torch.Tensor:
    return torch.cat([getattr(splits.train, name), getattr(splits.test, name)])


def test_the_real_files(real: Path) -> None:
    loaded = celeba(folder=real)
    y, of = both(loaded, "y"), both(loaded, "sensitive_features")
    if len(y) != 10_000:
        pytest.skip(f"the data folder has {len(y)} images, not the first 10,000")
    assert (len(loaded.train), len(loaded.test)) == (8_000, 2_000)
    # Counted with awk in list_attr_celeba.csv: neither, glasses, male, both.
    assert (2 * y + of).bincount().tolist() == [5633, 150, 3693, 524]
    assert loaded.classes == ("not Male", "Male")
    assert loaded.groups == ("not Eyeglasses", "Eyeglasses")
    assert loaded.train.x.shape == (8_000, 3, 64, 64)
    assert loaded.not_covered == ()
    assert "80% / 20% by seed 0, not the official one" in str(loaded.constants[1])


def test_the_real_images_have_the_attributes_of_their_line(real: Path) -> None:
    # Every image by its bytes, so that it can be found again whatever the order.
    loaded = celeba(folder=real)
    with zipfile.ZipFile(real / REAL[0]) as archive:
        lines = (real / REAL[1]).read_text().splitlines()
        places = [lines[0].split(",").index(name) for name in ("Male", "Eyeglasses")]
        expected = {}
        for line in lines[1:10_001:97]:
            cells = line.split(",")
            image = Image.open(io.BytesIO(archive.read(f"img_align_celeba/{cells[0]}")))
            key = np.asarray(image.convert("RGB")).transpose(2, 0, 1).tobytes()
            expected[key] = tuple(int(cells[place] == "1") for place in places)
    found = {}
    for part in (loaded.train, loaded.test):
        for row, y, of in zip(part.x[:], part.y, part.sensitive_features, strict=True):
            if (key := row.numpy().tobytes()) in expected:
                found[key] = (int(y), int(of))
    assert found == expected


def test_the_random_division_is_decided_by_the_seed(real: Path) -> None:
    first, again, other = (celeba(folder=real, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.train.y, again.train.y)
    assert not torch.equal(first.train.y, other.train.y)


def test_what_is_decoded_once_is_not_decoded_again(
    real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    celeba(folder=real)
    monkeypatch.setattr(MODULE, "decode", None)
    x, _ = celeba(folder=real).test.fetch(torch.arange(3))
    assert x.shape == (3, 3, 64, 64)
    assert 0 <= x.min() < x.max() <= 1


# What follows is made here.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six grey images, the k-th of value 10 k; the first and last two have their attributes."""
    (tmp_path / "celeba").mkdir()
    write_zip(tmp_path, range(1, 7))
    lines = ["image_id,Eyeglasses,Male"]
    lines += [f"{k:06}.jpg,{1 if k in (1, 2) else -1},{1 if k > 4 else -1}" for k in range(1, 7)]
    (tmp_path / "celeba" / "list_attr_celeba.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def write_zip(folder: Path, numbers, suffix: str = "png") -> Path:
    path = folder / "celeba" / "img_align_celeba.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/._000001.png", b"not an image")
        for k in reversed(numbers):
            stream = io.BytesIO()
            Image.new("RGB", (178, 218), (10 * k,) * 3).save(stream, "png")
            archive.writestr(f"img_align_celeba/{k:06}.{suffix}", stream.getvalue())
    return path


def values(part) -> list[int]:
    assert part.x.shape[1:] == (3, 64, 64)
    return [int(image.unique()) // 10 for image in part.x[:]]


def test_smaller_images(folder: Path) -> None:
    """Of one grey each: scaled, they keep their value. Each size is unpacked for itself."""
    for size in (16, 64, 16):
        loaded = celeba(folder=folder, size=size)
        assert loaded.train.x.shape[1:] == (3, size, size)
        found = {int(image.unique()) for part in (loaded.train, loaded.test) for image in part.x[:]}
        assert found == {10, 20, 30, 40, 50, 60}
    with pytest.raises(ValueError, match="size"):
        celeba(folder=folder, size=0)


@pytest.mark.parametrize("kind", ["csv", "txt"])
def test_the_official_partition(folder: Path, kind: str) -> None:
    parts = dict(zip(range(1, 7), (0, 0, 1, 2, 0, 2), strict=True))
    lines = [f"{k:06}.jpg{',' if kind == 'csv' else ' '}{part}" for k, part in parts.items()]
    if kind == "csv":
        lines.insert(0, "image_id,partition")
    (folder / "celeba" / f"list_eval_partition.{kind}").write_text("\n".join(lines) + "\n")
    loaded = celeba(folder=folder)
    assert values(loaded.train) == [1, 2, 5]
    assert values(loaded.test) == [4, 6]
    assert loaded.train.y.tolist() == [0, 0, 1]
    assert loaded.test.y.tolist() == [0, 1]
    assert loaded.train.sensitive_features.tolist() == [1, 1, 0]
    assert f"list_eval_partition.{kind}" in loaded.constants[1].what
    assert len(celeba(folder=folder, division="random").train) == 5


def test_an_incomplete_official_partition_is_not_used(folder: Path) -> None:
    lines = [f"{k:06}.jpg {k % 3}" for k in range(1, 8)]  # the seventh is not there
    (folder / "celeba" / "list_eval_partition.txt").write_text("\n".join(lines))
    loaded = celeba(folder=folder)
    assert sorted(values(loaded.train) + values(loaded.test)) == [1, 2, 3, 4, 5, 6]
    assert "not the official one" in loaded.constants[1].what
    with pytest.raises(DataError, match=r"needs .*list_eval_partition\.txt and all the images"):
        celeba(folder=folder, division="official")


def test_the_published_list_of_attributes(folder: Path) -> None:
    csv = folder / "celeba" / "list_attr_celeba.csv"
    expected = celeba(folder=folder)
    lines = csv.read_text().splitlines()
    txt = ["6", "Eyeglasses Male "] + [line.replace(",", "  ") for line in lines[1:]]
    (folder / "celeba" / "list_attr_celeba.txt").write_text("\n".join(txt))
    csv.unlink()
    loaded = celeba(folder=folder)
    assert torch.equal(loaded.train.y, expected.train.y)
    assert torch.equal(loaded.train.sensitive_features, expected.train.sensitive_features)


def test_other_attributes(folder: Path) -> None:
    loaded = celeba(folder=folder, label="Eyeglasses", group="Male")
    assert both(loaded, "y").sum() == 2
    assert loaded.classes == ("not Eyeglasses", "Eyeglasses")
    with pytest.raises(ValueError, match="label is 'Hat'; it must be one of 'Eyeglasses', 'Male'"):
        celeba(folder=folder, label="Hat")
    with pytest.raises(ValueError, match="division is 'mine'; it must be one of 'official'"):
        celeba(folder=folder, division="mine")


@pytest.mark.parametrize("there", [range(1, 6), range(1, 9)], ids=["fewer", "more"])
def test_images_without_attributes_and_the_other_way_round(folder: Path, there: range) -> None:
    write_zip(folder, there)
    with pytest.raises(DataError, match=rf"{len(there)} images and .* lists 6; .*allow_partial=T"):
        celeba(folder=folder)
    loaded = celeba(folder=folder, allow_partial=True)
    found = sorted(values(loaded.train) + values(loaded.test))
    assert found == [k for k in there if k < 7]


@pytest.mark.parametrize("suffix", ["jpg", "jpeg"])
def test_the_suffix_of_the_images_may_differ_from_the_list(folder: Path, suffix: str) -> None:
    write_zip(folder, range(1, 7), suffix)
    assert len(celeba(folder=folder).train) == 5


def test_a_truncated_zip_is_named_with_its_size(folder: Path) -> None:
    path = folder / "celeba" / "img_align_celeba.zip"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=rf"{path} .* 500 bytes .*md5 checksum"):
        celeba(folder=folder)


def test_a_damaged_image_is_named(folder: Path) -> None:
    path = folder / "celeba" / "img_align_celeba.zip"
    content = bytearray(path.read_bytes())
    content[content.index(b"000003.png") + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path} .*Bad CRC-32 .*000003\.png"):
        celeba(folder=folder)
    assert not list((folder / "unpacked").iterdir())


def test_what_is_no_image_is_named(folder: Path) -> None:
    with zipfile.ZipFile(folder / "celeba" / "img_align_celeba.zip", "a") as archive:
        archive.writestr("000007.jpg", b"text")
    with pytest.raises(DataError, match=r"000007\.jpg in .*zip is not an image"):
        celeba(folder=folder, allow_partial=True)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("000006.jpg,1", "has 2 cells in line 7 where 3"), ("000006.jpg,1,x", "Male.*row 6")],
)
def test_a_damaged_list_is_named(folder: Path, line: str, complaint: str) -> None:
    path = folder / "celeba" / "list_attr_celeba.csv"
    path.write_text("\n".join([*path.read_text().splitlines()[:-1], line]))
    with pytest.raises(DataError, match=rf"{path}.*{complaint}"):
        celeba(folder=folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"img_align_celeba\.zip\n.*list_attr_celeba\.csv"):
        celeba(folder=tmp_path)
