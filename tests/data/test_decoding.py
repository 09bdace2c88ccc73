import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from plumbline.data.decoding import decode, unpacked
from plumbline.data.files import DataError


def png(pixels: np.ndarray) -> io.BytesIO:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    stream.seek(0)
    return stream


def test_an_image_of_the_size_is_taken_as_it_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    assert np.array_equal(decode(png(pixels), "a", 8), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("tall", [True, False])
def test_another_shape_is_cropped_to_the_square_in_its_centre(tall: bool) -> None:
    pixels = np.zeros((178, 218, 3), np.uint8)
    pixels[:, 20:198] = (10, 20, 30)
    if tall:
        pixels = pixels.transpose(1, 0, 2)
    found = decode(png(np.ascontiguousarray(pixels)), "a", 64)
    assert found.shape == (3, 64, 64)
    assert (found == np.array([10, 20, 30])[:, None, None]).all()


def test_scaling_down_averages() -> None:
    # Stripes of one pixel: without antialiasing some would be missed, and the rest be 0 or 255.
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, ::2] = 255
    # At the border the filter sees half a stripe more or less: 0.5 / 12 of 255.
    assert np.abs(decode(png(pixels), "a", 8).astype(int) - 127.5).max() < 11


def test_colours_are_converted() -> None:
    grey = np.full((4, 4), 7, np.uint8)
    assert (decode(png(grey), "a", 4) == 7).all()
    assert decode(png(grey), "a", 4).shape == (3, 4, 4)
    colours = np.full((4, 4, 4), 90, np.uint8)  # with transparency
    assert decode(png(colours), "a", 4, "L").shape == (1, 4, 4)


def test_a_broken_image_is_named() -> None:
    whole = png(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).getvalue()
    for content in (b"", b"text", whole[:200]):
        with pytest.raises(DataError, match=r"faces/7\.png is not an image that can be decoded"):
            decode(io.BytesIO(content), "faces/7.png", 8)


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'plumbline\[images\]'"):
        decode(io.BytesIO(), "a", 8)


ROWS = np.arange(24, dtype=np.uint8).reshape(4, 6)


def refuse():
    raise AssertionError("unpacked again")
    yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "images.zip"
    path.write_bytes(b"zip")
    return path


def test_it_is_written_once_and_mapped(source: Path, tmp_path: Path) -> None:
    first = unpacked(source, "a", (4, 6), iter(ROWS), tmp_path)
    again = unpacked(source, "a", (4, 6), refuse(), tmp_path)
    assert np.array_equal(first, ROWS)
    assert np.array_equal(again, ROWS)
    assert isinstance(again, np.memmap)
    assert len(list((tmp_path / "unpacked").iterdir())) == 1


def test_it_is_made_again_when_the_source_has_changed(source: Path, tmp_path: Path) -> None:
    unpacked(source, "a", (4, 6), iter(ROWS), tmp_path)
    os.utime(source, ns=(0, 1))
    assert np.array_equal(unpacked(source, "a", (4, 6), iter(ROWS[::-1]), tmp_path), ROWS[::-1])
    os.utime(source, ns=(0, 2))
    source.write_bytes(b"another")
    assert np.array_equal(unpacked(source, "a", (2, 6), iter(ROWS[:2]), tmp_path), ROWS[:2])


def test_a_damaged_one_is_made_again(source: Path, tmp_path: Path) -> None:
    unpacked(source, "a", (4, 6), iter(ROWS), tmp_path)
    (path,) = (tmp_path / "unpacked").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(unpacked(source, "a", (4, 6), iter(ROWS), tmp_path), ROWS)


def test_what_is_stopped_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def stopped():
        yield ROWS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpacked(source, "a", (4, 6), stopped(), tmp_path)
    assert list((tmp_path / "unpacked").iterdir()) == []


def test_a_folder_that_must_not_be_written_to_stays_as_it_is(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    source = folder / "only-read.zip"
    source.write_bytes(b"zip")
    folder.chmod(0o555)
    try:
        assert np.array_equal(unpacked(source, "a", (4, 6), iter(ROWS), folder), ROWS)
    finally:
        folder.chmod(0o755)
    assert [path.name for path in folder.iterdir()] == ["only-read.zip"]
    assert len(list((cache / "unpacked").glob("only-read-a-*.npy"))) == 1
