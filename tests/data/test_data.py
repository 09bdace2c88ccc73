"""The package as a whole: its public names, and that every data set is found by name."""

import re
from pathlib import Path

import pytest

import plumbline.data as data
from plumbline.data.base import DATASETS, FILES

FOLDER = Path(data.__file__).parent


def test_every_file_that_has_a_data_set_is_imported() -> None:
    texts = [path.read_text() for path in FOLDER.glob("*.py")]
    written = {
        name or own.replace("_", "-")
        for text in texts
        for name, own in re.findall(r'^@dataset(?:\("([^"]+)".*\))?\ndef (\w+)', text, re.MULTILINE)
    }
    assert written == set(DATASETS) == set(FILES)
    assert {"adult", "dutch", "digits", "imdb", "imdb-hashed", "mnist", "cifar10"} <= written


def test_the_public_names_exist() -> None:
    assert len(set(data.__all__)) == len(data.__all__)
    assert all(hasattr(data, name) for name in data.__all__)


def test_bundled_data_sets_need_neither_network_nor_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setenv("PLUMBLINE_DATA", str(tmp_path / "none"))
    for name in ("adult", "digits"):
        assert len(data.load(name).train) > 1000
