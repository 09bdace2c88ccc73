"""``load`` on the folders of runs and of exports."""

import hashlib
import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import plumbline as pl
from plumbline.data import DataError
from plumbline.experiments.exporting import NotExported, predict
from plumbline.experiments.files import FileError
from plumbline.experiments.named_code import UnsafeCode
from plumbline.instruments import Exported, Trained
from tests.instruments.people import network, patients, tensors

BUDGET = pl.Budget(epsilon=5, delta=1e-4, steps=4, expected_batch_size=60)
KNOWN = {
    "target": "readmitted",
    "categories": {
        "readmitted": ["no", "yes"], "ward": ["east", "west", "north"], "sex": ["f", "m"],
        "code": ["1", "2", "3"],
    },
    "ranges": {"age": [18, 90], "stay": [0, 40]},
    "records": 400,
    "budget": BUDGET,
}  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return patients(tmp_path_factory.mktemp("table") / "patients.csv")


@pytest.fixture(scope="module")
def run(table: Path) -> Trained:
    return pl.train(data=table, folder=table.parent / "runs", **KNOWN)


@pytest.fixture(scope="module")
def exported(run: Trained, table: Path) -> Path:
    return pl.export(run.folder, table.parent / "model", program=False).folder


def test_both_predict_alike(run: Trained, exported: Path, table: Path) -> None:
    first, second = pl.load(run.folder), pl.load(exported)
    assert isinstance(first, Trained)
    assert isinstance(second, Exported)
    frame = pd.read_csv(table).drop(columns="readmitted")
    expected = run.predict(table)
    for one in (first, second):
        assert torch.equal(one.predict(table), expected)
        assert torch.equal(one.predict(str(table)), expected)
        assert torch.equal(one.predict(frame), expected)
        assert one.decide(expected) == run.decide(expected)
        assert one.classes == ("no", "yes")
        assert one.statement().strip() == run.statement().strip()
        assert not one.model.training
    assert second.epsilon >= run.epsilon
    assert second.settings["method"] == "Global-Adapt"


def test_a_frame_needs_its_columns(exported: Path, table: Path) -> None:
    frame = pd.read_csv(table).drop(columns="ward")
    with pytest.raises(DataError, match="the DataFrame has no column 'ward', which the model was"):
        pl.load(exported).predict(frame)


def test_files_that_were_changed_are_not_used(exported: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exported, tmp_path / "model"))
    (copy / "statement.txt").write_text("epsilon = 0.1")
    (copy / "predict.py").unlink()
    with pytest.raises(FileError, match=r"predict.py is missing; statement.txt was changed"):
        pl.load(copy)
    settings = json.loads((copy / "model.json").read_bytes())
    (copy / "model.json").write_text(json.dumps({**settings, "format": 2}))
    with pytest.raises(FileError, match=r"model\.json is damaged, or of another version"):
        pl.load(copy)


def forged(exported: Path, copy: Path, name: str, data: bytes) -> Path:
    """A copy with another file, whose hash is in the manifest."""
    shutil.copytree(exported, copy)
    (copy / name).write_bytes(data)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_weights_that_would_run_code_are_not_read(exported: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save({"0.weight": Evil(tmp_path / "mark")}, stream)
    copy = forged(exported, tmp_path / "model", "model.pt", stream.getvalue())
    with pytest.raises(FileError, match=r"model\.pt does not load into the network"):
        pl.load(copy)
    with pytest.raises(pickle.UnpicklingError):
        predict.Model(copy)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("within", "problem"),
    [(False, "'os:system' is not declared to be one"), (True, "does not load into the network")],
)
def test_a_network_that_is_something_else_is_not_called(
    within: bool, problem: str, exported: Path, tmp_path: Path
) -> None:
    settings = json.loads((exported / "model.json").read_bytes())
    options = {"command": f"mkdir {tmp_path / 'mark'}"}
    network: dict[str, Any] = {"reference": "os:system", "options": options}
    settings["network"] = {"layers": {"0": network}} if within else network
    copy = forged(exported, tmp_path / "model", "model.json", json.dumps(settings).encode())
    with pytest.raises(FileError if within else UnsafeCode, match=problem):
        pl.load(copy)
    assert not (tmp_path / "mark").exists()


def test_an_export_is_not_a_run(exported: Path) -> None:
    with pytest.raises(FileError, match="It is an exported model, which tells its epsilon"):
        pl.export(exported)


def test_a_network_that_was_given_as_an_object(tmp_path: Path) -> None:
    """Of plain layers it needs no object any more; of a class of one's own nobody could load it."""
    x, *_ = data = tensors()
    run = pl.train(data=data, model=network(), budget=BUDGET, folder=tmp_path / "plain")
    found = pl.export(run.folder, tmp_path / "model")
    assert torch.equal(pl.load(found.folder).predict(x), run.predict(x))
    assert not (found.folder / "predict.py").exists()
    assert "There is no predict.py: the run was not made on a table." in found.notes
    assert any("There is no model.pt2: the shape of a record" in note for note in found.notes)
    assert any("Something was taken from the data as they are" in note for note in found.notes)
    with pytest.raises(ValueError, match="the model was not trained on a table"):
        pl.load(found.folder).predict(pd.DataFrame())

    class Own(nn.Sequential):
        pass

    own = pl.train(data=data, model=Own(network()), budget=BUDGET, folder=tmp_path / "own")
    with pytest.raises(NotExported, match="a Python object of a class of your own"):
        pl.export(own.folder, tmp_path / "other")
    assert not (tmp_path / "other").exists()
