"""``train`` and ``load`` on objects of one's own."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import plumbline as pl
from plumbline.experiments import objects
from plumbline.experiments.data_identity import OtherData
from plumbline.experiments.files import FileError
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.verification import CONFIRMED, CONTRADICTED, verify
from plumbline.instruments import load, train
from plumbline.mechanism.ledger import Ledger
from plumbline.registry import UnknownPart
from tests.instruments.people import network, patients, tensors

BUDGET = pl.Budget(epsilon=5, delta=1e-4, steps=4, expected_batch_size=60)


def test_tensors_and_a_function_that_builds_the_network(tmp_path: Path) -> None:
    x, y, groups = tensors()
    found = train(
        data=(x, y, groups),
        model=network,
        method=pl.methods.dpsgd(clip=0.5),
        loss=nn.CrossEntropyLoss(reduction="none"),
        budget=BUDGET,
        optimizer=torch.optim.SGD,
        learning_rate=0.1,
        seed=3,
        folder=tmp_path,
        name="mine",
    )
    assert found.result.steps == 4
    assert 4.9 < found.epsilon <= 5
    assert list(found.result.report.by_group) == ["0", "1"]
    assert "epsilon = 5.00" in found.statement()
    assert found.folder.parent == tmp_path / "mine"
    assert found.predict(x[:7]).shape == (7, 2)
    again = load(found.folder)
    for name, value in found.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)


def test_correlated_noise_is_charged_stated_and_verified(tmp_path: Path) -> None:
    budget = pl.Budget(epsilon=8, delta=1e-4, steps=7, expected_batch_size=30)
    given: dict[str, Any] = {"data": tensors(), "model": network, "budget": budget}
    found = train(**given, bands=3, method="dpsgd", folder=tmp_path)
    assert 7.9 < found.epsilon <= 8
    assert "correlated over 3 steps" in " ".join(found.statement().split())
    ((release, count),) = Ledger.read(found.folder / "ledger").entries()
    assert count == 7
    assert release["sampling"]["parts"] == 3
    checks = {one.what: one for one in verify(found.folder, data=True).checks}
    assert {one.outcome for one in checks.values()} == {CONFIRMED}
    assert "in its part's turn, one of 3" in checks["charges"].words
    # Charged as if it were independent noise, it would not be what the recipe asks for.
    recipe = found.folder / "recipe.json"
    fields = json.loads(recipe.read_text())
    fields["method"]["noise"] = None
    recipe.write_text(json.dumps(fields))
    assert {one.what for one in verify(found.folder).of(CONTRADICTED)} >= {"charges", "settings"}
    for method, problem in (("adaptive", "changes along the run"), ("nonprivate", "no guarantee")):
        with pytest.raises(RecipeError, match=problem):
            train(**given, bands=3, method=method, folder=tmp_path)


def test_a_module_is_copied_and_not_trained(tmp_path: Path) -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = train(data=tensors(), model=model, budget=BUDGET, folder=tmp_path)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not torch.equal(found.model.state_dict()["0.weight"], before["0.weight"])


def test_a_data_frame_keeps_its_encoding(tmp_path: Path) -> None:
    frame = pd.read_csv(patients(tmp_path / "patients.csv"))
    found = train(
        data=frame,
        target="readmitted",
        sensitive="sex",
        from_data=True,
        budget=BUDGET,
        folder=tmp_path,
        seed=0,
    )
    assert found.encoding is not None
    assert set(found.result.report.by_group) == {"f", "m"}
    new = tmp_path / "new.csv"
    frame.drop(columns="readmitted").head(5).to_csv(new, index=False)
    chances = found.predict(new)
    assert chances.shape == (5, 2)
    assert torch.allclose(chances.sum(1), torch.ones(5, dtype=torch.float64))


def test_noise_is_secure_unless_a_seed_is_given(tmp_path: Path) -> None:
    secure = train(data=tensors(), model=network, budget=BUDGET, folder=tmp_path)
    assert "operating system's entropy" in secure.statement()
    seeded = train(data=tensors(), model=network, budget=BUDGET, folder=tmp_path, seed=0)
    assert "do not know its seed" in seeded.statement().replace("\n", " ")
    assert seeded.folder != secure.folder


def test_a_finished_run_is_read_and_other_data_refused(tmp_path: Path) -> None:
    x, y, groups = tensors()
    first = train(data=(x, y, groups), model=network, budget=BUDGET, folder=tmp_path)
    charged = (first.folder / "ledger").read_bytes()
    again = train(data=(x, y, groups), model=network, budget=BUDGET, folder=tmp_path)
    assert again.result == first.result
    assert (first.folder / "ledger").read_bytes() == charged
    with pytest.raises(OtherData, match="is not what the run was started on"):
        train(data=(x + 1, y, groups), model=network, budget=BUDGET, folder=tmp_path)


def test_a_shared_ledger(tmp_path: Path) -> None:
    for seed in (1, 2):
        train(
            data=tensors(),
            model=network,
            budget=BUDGET,
            folder=tmp_path,
            seed=seed,
            ledger=tmp_path / "all",
        )
    assert len(Ledger.read(tmp_path / "all").runs()) == 2


def test_an_object_that_is_not_here_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = train(data=tensors(), model=network(), budget=BUDGET, folder=tmp_path)
    monkeypatch.setattr(objects, "OBJECTS", {})
    with pytest.raises(UnknownPart, match="was given as a Python object"):
        load(found.folder)


def test_wrong_parts_are_refused_before_anything_is_charged(tmp_path: Path) -> None:
    def run(**description: object) -> None:
        train(**{"data": tensors(), "model": network, "budget": BUDGET, **description})  # type: ignore[arg-type]

    with pytest.raises(RecipeError, match="cannot take the data"):
        run(model=nn.Linear(5, 2), folder=tmp_path)
    with pytest.raises(ValueError, match="cannot be imported"):
        run(model="no.such.module:net", folder=tmp_path)
    x, y, _ = tensors()
    with pytest.raises(RecipeError, match="treats groups differently"):
        run(data=(x, y), method="dpsgd_f", folder=tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'dpsgd'"):
        run(method="dpsgdd", folder=tmp_path)
    assert not list(tmp_path.rglob("ledger"))


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="There is no folder"):
        load(tmp_path / "nothing")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "settings.json").write_text("{}")
    with pytest.raises(FileError, match="earlier version of Plumbline"):
        load(tmp_path / "old")
