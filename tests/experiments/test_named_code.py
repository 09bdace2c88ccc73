"""Folders that name code: what is called on their word, and what is not."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import plumbline as pl
from plumbline.experiments import RunSpec, run
from plumbline.experiments.named_code import UnsafeCode, check_recipe, require_declared
from plumbline.experiments.run_spec import read_spec
from plumbline.experiments.verification import verify
from plumbline.registry import FOLLOWED
from plumbline.report.reading import read
from tests.experiments.small import recipe

CLINIC = """
from torch import Tensor, nn, optim
from torch.utils.data import Dataset
import plumbline as pl
class Net(nn.Linear): pass
def made() -> nn.Module: return Net(2, 2)
def untold(): return Net(2, 2)
def number() -> int: return 3
def hidden() -> 'NoSuchName': return Net(2, 2)
@pl.data.dataset
def patients(): raise AssertionError
def rows() -> Dataset: raise AssertionError
def far(output, target) -> Tensor: raise AssertionError
def slow(parameters) -> optim.Optimizer: raise AssertionError
def soft() -> pl.methods.Method: return pl.methods.dpsgd(clip=1.0)
"""


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a module of parts, and of what is none."""
    (tmp_path / "clinic.py").write_text(CLINIC)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("clinic", None)
    for one in [*FOLLOWED]:
        if one.startswith("clinic:"):
            FOLLOWED.discard(one)
    pl.data.base.DATASETS._parts.pop("patients", None)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("model", "torch.nn:Linear"),
        ("model", "plumbline.models.tabular:mlp"),
        ("model", "clinic:Net"),
        ("model", "clinic:made"),
        ("data", "clinic:patients"),
        ("data", "clinic:rows"),
        ("loss", "torch.nn:MSELoss"),
        ("loss", "clinic:far"),
        ("optimizer", "torch.optim:Adagrad"),
        ("optimizer", "clinic:slow"),
        ("method", "clinic:soft"),
        ("method", "plumbline.clipping:Flat"),
        ("method", "plumbline.methods:bam"),
    ],
)
def test_what_is_declared_as_a_part_may_be_used(kind: str, reference: str, clinic: Path) -> None:
    require_declared(kind, reference, clinic / "run")


@pytest.mark.parametrize("kind", ["data", "model", "loss", "optimizer", "method"])
@pytest.mark.parametrize(
    "reference", ["os:system", "subprocess:run", "clinic:untold", "clinic:number"]
)
def test_nothing_else_is_called(kind: str, reference: str, clinic: Path) -> None:
    for _ in range(2):  # that it was refused once makes it no better
        with pytest.raises(UnsafeCode, match="nothing else is called on the word of a folder"):
            require_declared(kind, reference)


def test_a_type_that_cannot_be_found_declares_nothing(clinic: Path) -> None:
    with pytest.raises(UnsafeCode, match="'clinic:hidden' is not declared to be one"):
        require_declared("model", "clinic:hidden")


def test_code_in_the_folder_is_not_even_imported(clinic: Path) -> None:
    with pytest.raises(UnsafeCode, match="which is not run"):
        require_declared("model", "clinic:Net", clinic)
    measured = {"probe": {"measure": ["bias", "clinic:number"]}}
    with pytest.raises(UnsafeCode, match="which is not run"):
        check_recipe(measured, clinic)
    assert "clinic" not in sys.modules
    check_recipe(measured, clinic / "run")


def test_a_folder_of_the_same_process_is_the_users_own(clinic: Path) -> None:
    fields = {"model": {"name": "clinic:untold"}}
    with pytest.raises(UnsafeCode):
        check_recipe(fields, clinic / "run")
    pl.models.build("clinic:untold")  # the user names it
    check_recipe(fields, clinic / "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = RunSpec(recipe(), recipe().methods[0], 0)
    home = tmp_path_factory.mktemp("named")
    run(spec, home)
    return home / spec.folder


READERS: dict[str, Callable[[Path], Any]] = {
    "read_spec": read_spec, "verify": verify, "load": pl.load, "report": read,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["data", "model", "loss", "optimizer", "method"])
@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_run_is_refused_and_nothing_has_run(
    finished: Path, tmp_path: Path, kind: str, reader: str
) -> None:
    copy = shutil.copytree(finished, tmp_path / "run")
    fields = json.loads((copy / "recipe.json").read_bytes())
    command = {"command": f"mkdir {tmp_path / 'mark'}"}
    fields[kind] |= {"name": "os:system", ("settings" if kind == "method" else "options"): command}
    (copy / "recipe.json").write_text(json.dumps(fields))
    with pytest.raises(UnsafeCode, match="'os:system' is not declared to be one"):
        READERS[reader](copy)
    assert not (tmp_path / "mark").exists()


def test_a_hostile_comparison_is_refused(tmp_path: Path) -> None:
    fields = recipe().model_dump(mode="json")
    fields["methods"][0]["model"] = {"name": "os:system"}
    (tmp_path / "recipe.json").write_text(json.dumps(fields))
    with pytest.raises(UnsafeCode, match="The network 'os:system' is not declared"):
        read(tmp_path)
