"""A run's result and weights, written and read again."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from plumbline.experiments import RunResult, run_result
from plumbline.experiments.files import RESULT, FileError
from plumbline.experiments.run_result import (
    commit,
    read_result,
    same_bits,
    source,
    versions,
    write_model,
)
from plumbline.fairness import Outcomes, Undefined, evaluate

REPORT = evaluate(
    Outcomes.from_logits(torch.eye(2)[[0, 0, 1, 0]], torch.tensor([0, 0, 1, 1])),
    sensitive_features=[0, 0, 1, 1],
    names={0: "a", 1: "b"},
)
assert isinstance(REPORT.by_group["a"]["true positive rate"], Undefined)
DONE = RunResult(
    method="dpsgd",
    seed=3,
    epsilon=2.5,
    delta=1e-5,
    noise_multiplier=1.1,
    steps=10,
    seconds=1.5,
    report=REPORT,
    statement="In words.",
    folder="dpsgd-seed3-0123456789",
    model={"name": "mlp", "options": {"features": 3, "classes": 2}},
    settings={"clip": 1.0},
)


@pytest.mark.parametrize("epsilon", [2.5, math.inf])
def test_what_is_written_is_read(tmp_path: Path, epsilon: float) -> None:
    done = replace(DONE, epsilon=epsilon)
    (tmp_path / RESULT).write_text(json.dumps(done.to_json(), allow_nan=False))
    assert read_result(tmp_path) == done


def test_there_may_be_none_yet(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None


@pytest.mark.parametrize("field", ["report", "epsilon", "seed"])
def test_a_damaged_one_is_refused(tmp_path: Path, field: str) -> None:
    stored = DONE.to_json()
    del stored[field]
    (tmp_path / RESULT).write_text(json.dumps(stored))
    with pytest.raises(FileError, match=rf"result\.json is damaged.*{field}"):
        read_result(tmp_path)


def test_weights_are_read_without_pickle(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    write_model(model, tmp_path / "model.pt")
    stored = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {name: value.tolist() for name, value in stored.items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }


def test_versions_name_what_decides_the_numbers() -> None:
    assert versions()["torch"] == torch.__version__
    assert set(versions()) - {"commit"} == {"plumbline", "torch", "numpy", "python"}


def test_the_source_is_known_by_its_files_and_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_result, "__file__", str(tmp_path / "experiments" / "run_result.py"))
    one = tmp_path / "one.py"

    def digest() -> str:
        return source.__wrapped__()  # not the one that is kept

    one.write_text("1")
    first = digest()
    assert digest() == first
    (tmp_path / "notes.txt").touch()
    assert digest() == first
    one.write_text("2")
    changed = digest()
    one.rename(tmp_path / "two.py")
    assert len({first, changed, digest()}) == 3
    assert set(same_bits()) == {"plumbline", "source", "torch", "numpy", "python"}


def test_the_commit_is_named_in_a_checkout_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = commit()
    assert here is None or re.fullmatch("[0-9a-f]{10}", here)
    commit.cache_clear()
    monkeypatch.setattr(run_result, "__file__", str(tmp_path / "lib" / "a" / "b" / "c.py"))
    try:
        assert commit() is None
        assert "commit" not in versions()
        (tmp_path / ".git").mkdir()  # not git's
        commit.cache_clear()
        assert commit() is None
    finally:
        commit.cache_clear()
