import os
from pathlib import Path

import numpy as np
import pytest

from plumbline.data.caching import Arrays, cached


class Compute:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return {"a": np.arange(3), "b": np.full((2, 2), self.calls)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "texts.tar"
    path.parent.mkdir()
    path.write_text("some texts")
    return path


def test_it_is_computed_once(source: Path, cache: Path) -> None:
    compute = Compute()
    first, again = (cached(source, "words", compute) for _ in range(2))
    assert compute.calls == 1
    assert sorted(again) == ["a", "b"]
    np.testing.assert_array_equal(first["b"], again["b"])
    (file,) = (cache / "computed").iterdir()
    assert file.name.startswith("texts.tar.")
    assert file.stat().st_mode & 0o077 == 0  # it holds the records
    assert list(source.parent.iterdir()) == [source]  # nothing is written beside the data


@pytest.mark.parametrize("change", ["settings", "size", "time", "file"])
def test_it_is_computed_again_when_something_has_changed(source: Path, change: str) -> None:
    compute = Compute()
    cached(source, "words", compute)
    settings = "words"
    if change == "settings":
        settings = "pairs"
    elif change == "size":
        source.write_text("some other texts")
    elif change == "time":
        os.utime(source, ns=(1, 1))
    else:
        source = source.rename(source.parent.parent / source.name)
    cached(source, settings, compute)
    assert compute.calls == 2


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"text"])
def test_a_damaged_cache_is_replaced(source: Path, cache: Path, content: bytes) -> None:
    compute = Compute()
    cached(source, "words", compute)
    (file,) = (cache / "computed").iterdir()
    file.write_bytes(content)
    cached(source, "words", compute)
    cached(source, "words", compute)
    assert compute.calls == 2


def test_without_a_place_for_the_cache_it_is_computed_each_time(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compute = Compute()
    cached(source, "words", compute)
    assert cached(source, "words", compute)["b"][0, 0] == 2


def test_a_write_that_fails_leaves_nothing(
    source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **arrays: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert cached(source, "words", Compute())["a"].tolist() == [0, 1, 2]
    assert list((cache / "computed").iterdir()) == []
