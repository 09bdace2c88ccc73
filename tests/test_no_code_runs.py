"""Pickles that would run code, wherever a file is read: refused, and nothing has run."""

import importlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plumbline.data.caching import cached
from plumbline.data.decoding import unpacked
from plumbline.data.files import DataError
from plumbline.data.imagenet32 import imagenet32
from plumbline.experiments import RunSpec, run
from plumbline.experiments.verification import CONTRADICTED, verify
from plumbline.models import scattering
from plumbline.training.checkpoint_file import PRIVATE_MARK, CheckpointError, read_partner
from tests.experiments.small import recipe
from tests.training.runs import Run


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What would appear. That the pickles are real is shown first."""
    shown = tmp_path / "shown"
    pickle.loads(pickle.dumps(Evil(shown)))
    assert shown.exists()
    return tmp_path / "mark"


def evil_torch(mark: Path) -> bytes:
    stream = io.BytesIO()
    torch.save({"kind": "plumbline checkpoint", "format": 1, "model": Evil(mark)}, stream)
    return stream.getvalue()


def evil_npy(mark: Path) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Evil(mark)], object), allow_pickle=True)
    return stream.getvalue()


def evil_npz(mark: Path, *names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(f"{name}.npy", evil_npy(mark))
    return stream.getvalue()


FILES: dict[str, Callable[[Path], bytes]] = {
    "torch": evil_torch,
    "pickle": lambda mark: pickle.dumps(Evil(mark)),
    "old pickle": lambda mark: pickle.dumps(Evil(mark), protocol=0),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_checkpoint(kind: str, mark: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(FILES[kind](mark))
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt"):
        Run().resume(path)
    assert not mark.exists()


def test_the_state_of_single_records(mark: Path, tmp_path: Path) -> None:
    module = importlib.import_module("plumbline.training.checkpoint")
    path = tmp_path / "checkpoint.pt"
    partner = Path(f"{path}.PRIVATE")
    partner.write_bytes(PRIVATE_MARK + b"token\n" + evil_torch(mark))
    with pytest.raises(CheckpointError):
        module._from_bytes(read_partner(path, "token"), partner)
    assert not mark.exists()


@pytest.mark.parametrize("kind", FILES)
def test_the_weights_and_the_checkpoint_of_a_run_that_is_verified(
    kind: str, mark: Path, tmp_path: Path
) -> None:
    one = recipe(model={"name": "adult-mlp", "options": {"hidden": 4}}, log_every=2)
    budget = one.budget.model_copy(update={"steps": 2})
    one = one.model_copy(update={"budget": budget})
    folder = tmp_path / run(RunSpec(one, one.methods[1], 0), tmp_path).folder
    for name in ("model.pt", "checkpoint.pt"):
        (folder / name).write_bytes(FILES[kind](mark))
    assert {"weights", "checkpoint"} <= {one.what for one in verify(folder).of(CONTRADICTED)}
    assert not mark.exists()


def test_arrays_of_objects(mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = importlib.import_module("plumbline.data.imagenet32")
    for file in (*home.TRAIN, *home.TEST):
        path = tmp_path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(evil_npz(mark, "data", "labels"))
    with pytest.raises(DataError, match="no arrays of numbers"):
        imagenet32(folder=tmp_path, verify=False)
    assert not mark.exists()


def test_caches(mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in a cache and cannot be read safely is computed again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.write_text("records")
    found = cached(source, "as it is", lambda: {"x": np.arange(3)})
    (path,) = (tmp_path / "cache").rglob("*.npz")
    path.write_bytes(evil_npz(mark, "x"))
    again = cached(source, "as it is", lambda: {"x": np.arange(3)})
    assert again["x"].tolist() == found["x"].tolist()

    rows = [np.zeros(4, np.uint8)]
    unpacked(source, "data", (1, 4), rows, tmp_path)
    (path,) = (tmp_path / "unpacked").rglob("*.npy")
    path.write_bytes(evil_npy(mark))
    assert unpacked(source, "data", (1, 4), rows, tmp_path).shape == (1, 4)

    path = tmp_path / "features.npy"
    path.write_bytes(evil_npy(mark))
    assert scattering._read(path, 1) is None
    assert not mark.exists()


def test_json_names_no_classes(tmp_path: Path, mark: Path) -> None:
    """The other files of a run are JSON, TOML and text, which hold values only."""
    folder = tmp_path / "run"
    folder.mkdir()
    evil = {"__reduce__": ["os.mkdir", [str(mark)]], "py/object": "os.mkdir"}
    (folder / "recipe.json").write_text(json.dumps(evil))
    with pytest.raises(RuntimeError, match=r"recipe\.json cannot be used"):
        verify(folder)
    assert not mark.exists()
