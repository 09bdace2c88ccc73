import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plumbline.data.files import DataError, md5_of
from plumbline.data.imagenet32 import imagenet32

MODULE = importlib.import_module("plumbline.data.imagenet32")


@pytest.fixture
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of other checksums than the published ones are taken."""
    for name in ("TRAIN", "TEST"):
        stripped = tuple(replace(file, md5=None) for file in getattr(MODULE, name))
        monkeypatch.setattr(MODULE, name, stripped)


def written(folder: Path, *, compressed: bool, batches: int = 10) -> np.ndarray:
    """Two images in each training batch and three to test, ``[n, 3072]``, in this order."""
    (folder / "imagenet32").mkdir()
    save = np.savez_compressed if compressed else np.savez
    pixels = np.random.default_rng(0).integers(0, 256, (2 * batches + 3, 3072), np.uint8)
    for k in range(batches):
        save(
            folder / "imagenet32" / f"train_data_batch_{k + 1}.npz",
            data=pixels[2 * k : 2 * k + 2],
            labels=np.array([k + 1, 1000 - k]),
            mean=np.zeros(3072),
        )
    last = {"data": pixels[2 * batches :], "labels": np.array([1, 500, 1000])}
    save(folder / "imagenet32" / "val_data.npz", **last)
    return pixels.reshape(-1, 3, 32, 32)


@pytest.mark.parametrize("compressed", [True, False])
def test_imagenet32(tmp_path: Path, any_file: None, compressed: bool) -> None:
    pixels = torch.from_numpy(written(tmp_path, compressed=compressed))
    loaded = imagenet32(folder=tmp_path)
    assert loaded.train.y.tolist() == [y for k in range(10) for y in (k, 999 - k)]
    assert loaded.test.y.tolist() == [0, 499, 999]
    assert torch.equal(loaded.train.x[:], pixels[:20])
    assert torch.equal(loaded.test.x[:], pixels[20:])
    x, y = loaded.train.fetch(torch.tensor([19, 0]))
    torch.testing.assert_close(x, pixels[[19, 0]] / 255)
    assert y.tolist() == [990, 0]
    assert torch.equal(loaded.train.sensitive_features, loaded.train.y)
    assert (len(loaded.classes), loaded.classes[0]) == (1000, "1")
    # An uncompressed array needs no second file.
    assert (tmp_path / "unpacked").is_dir() == compressed
    assert all(isinstance(block, np.memmap) for block in loaded.train.x._blocks)


def test_what_is_there_is_loaded_when_asked(tmp_path: Path, any_file: None) -> None:
    written(tmp_path, compressed=False, batches=3)
    with pytest.raises(DataError, match=r"train_data_batch_4\.npz") as caught:
        imagenet32(folder=tmp_path)
    assert "only the 4 of 11 files that are there, pass allow_partial=True" in str(caught.value)
    assert len(imagenet32(folder=tmp_path, allow_partial=True).train) == 6


def test_without_a_test_part_there_is_nothing_to_load(tmp_path: Path, any_file: None) -> None:
    written(tmp_path, compressed=False)
    (tmp_path / "imagenet32" / "val_data.npz").unlink()
    with pytest.raises(DataError, match=r"val_data\.npz") as caught:
        imagenet32(folder=tmp_path, allow_partial=True)
    assert "allow_partial" not in str(caught.value)


def test_the_published_checksums_are_expected(tmp_path: Path) -> None:
    written(tmp_path, compressed=True)
    found = md5_of(tmp_path / "imagenet32" / "train_data_batch_1.npz")
    match = f"checksum {found} where 464fde20de6eb44c28cc1a8c11544bb1 is published"
    with pytest.raises(DataError, match=match):
        imagenet32(folder=tmp_path)
    assert len(imagenet32(folder=tmp_path, verify=False).train) == 20


def test_the_names_of_the_classes(tmp_path: Path, any_file: None) -> None:
    written(tmp_path, compressed=False)
    names = tmp_path / "imagenet32" / "map_clsloc.txt"
    lines = [f"n{k:08} {k} thing_{k}" for k in range(1, 1001)]
    names.write_text("\n".join(reversed(lines)) + "\n")
    assert imagenet32(folder=tmp_path).classes[41] == "thing_42"
    names.write_text("\n".join(lines[:-1]))
    with pytest.raises(DataError, match=r"map_clsloc\.txt names 999 classes"):
        imagenet32(folder=tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kept", [0, 100, 4000])
def test_a_truncated_file_is_named_with_its_size(
    tmp_path: Path, any_file: None, compressed: bool, kept: int
) -> None:
    written(tmp_path, compressed=compressed)
    path = tmp_path / "imagenet32" / "train_data_batch_7.npz"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=rf"{path} .* {kept:,} bytes .*md5 checksum"):
        imagenet32(folder=tmp_path)


def test_a_damaged_compressed_file_is_named(tmp_path: Path, any_file: None) -> None:
    written(tmp_path, compressed=True)
    path = tmp_path / "imagenet32" / "val_data.npz"
    content = bytearray(path.read_bytes())
    content[3000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path} cannot be read to its end"):
        imagenet32(folder=tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"data": np.zeros((2, 3072), np.uint8)}, r"not \['labels.npy'\]"),
        ({"data": np.zeros((2, 12288), np.uint8), "labels": np.ones(2, int)}, r"\(2, 12288\)"),
        ({"data": np.zeros((2, 3072)), "labels": np.ones(2, int)}, "float64"),
        (
            {"data": np.zeros((2, 3072), np.uint8), "labels": np.array([0, 1])},
            "labels outside of 0 to 999",
        ),
        (
            {"data": np.zeros((2, 3072), np.uint8), "labels": np.array([1, None])},
            "no arrays of numbers",
        ),
    ],
)
def test_another_file(
    tmp_path: Path, any_file: None, content: dict[str, np.ndarray], complaint: str
) -> None:
    written(tmp_path, compressed=False)
    path = tmp_path / "imagenet32" / "train_data_batch_2.npz"
    np.savez(path, **content)
    with pytest.raises(DataError, match=rf"{path} .*{complaint}"):
        imagenet32(folder=tmp_path)
