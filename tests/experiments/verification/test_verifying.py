"""A run that is what it says is confirmed; every way of changing it is found."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline.experiments import run_spec, running
from plumbline.experiments.files import FileError
from plumbline.experiments.run_spec import runs_in
from plumbline.experiments.verification import (
    CONFIRMED,
    CONTRADICTED,
    UNKNOWN,
    Verification,
    verify,
)
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.rounding import rounded_up
from plumbline.training import keeping

Copied = Callable[[], Path]


def outcomes(found: Verification) -> dict[str, str]:
    return {check.what: check.outcome for check in found.checks}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_an_honest_run_is_confirmed(finished: Path) -> None:
    found = verify(finished, data=True)
    assert set(outcomes(found).values()) == {CONFIRMED}
    assert set(outcomes(found)) == {
        "ledger", "epsilon", "statement", "isolation", "charges", "settings", "files", "weights",
        "data", "metrics", "versions",
    }  # fmt: skip
    assert found.epsilon == pytest.approx(found.claim.epsilon, rel=1e-9)
    assert f"compose to epsilon {rounded_up(found.epsilon, 6)} at delta" in found.checks[1].words
    assert json.loads(json.dumps(found.to_json()))["epsilon"]["stated"] == found.claim.epsilon


def test_without_the_data_its_size_is_not_confirmed(finished: Path) -> None:
    found = verify(finished)
    assert [check.what for check in found.of(UNKNOWN)] == ["data"]
    assert "--data" in found.of(UNKNOWN)[0].words
    assert not found.of(CONTRADICTED)


def test_records_kept_apart_in_another_way_than_stated(copied: Copied) -> None:
    folder = copied()
    text = json.loads((folder / "result.json").read_text())["statement"]
    other = text.replace("under torch.vmap", "by hand")
    edit(folder / "result.json", statement=other)
    (folder / "statement.txt").write_text(other)
    assert outcomes(verify(folder))["isolation"] == CONTRADICTED


def test_an_understated_epsilon(copied: Copied) -> None:
    folder = copied()
    edit(folder / "result.json", epsilon=0.01)
    found = outcomes(verify(folder))
    assert found["epsilon"] == found["files"] == CONTRADICTED
    assert found["ledger"] == CONFIRMED


def test_an_epsilon_that_is_understated_in_words_only(copied: Copied) -> None:
    folder = copied()
    result = json.loads((folder / "result.json").read_text())
    text = re.sub(r"epsilon = [\d.]+\s", "epsilon = 0.01 ", result["statement"])
    assert text != result["statement"]
    edit(folder / "result.json", statement=text)
    (folder / "statement.txt").write_text(text)
    (folder / "manifest.json").unlink()  # as a run was before there were manifests
    found = verify(folder)
    assert [check.what for check in found.of(CONTRADICTED)] == ["statement"]


def test_a_ledger_that_lost_its_end(copied: Copied) -> None:
    folder = copied()
    lines = (folder / "ledger").read_bytes().splitlines(keepends=True)
    (folder / "ledger").write_bytes(b"".join(lines[:-2]))
    found = outcomes(verify(folder))
    # Its chain is whole; the manifest knows that it was longer, and the result that it cost more.
    assert found["ledger"] == found["epsilon"] == found["charges"] == CONTRADICTED


def test_a_charge_that_the_recipe_does_not_ask_for(copied: Copied) -> None:
    folder = copied()
    with Ledger.open(folder / "ledger") as ledger:
        (run,), ((release, _),) = ledger.runs(), ledger.entries()
        ledger.charge(release, run=run, step=6, noise_position=(6, "0" * 32))
    found = verify(folder)
    assert [check.what for check in found.of(CONTRADICTED)] == ["epsilon", "statement", "charges"]
    with Ledger.open(folder / "ledger") as ledger:
        ledger.charge(release, run="another", step=0)
    assert "1 more runs" in next(c.words for c in verify(folder).checks if c.what == "charges")


def test_a_line_that_was_changed(copied: Copied) -> None:
    folder = copied()
    text = (folder / "ledger").read_text()
    (folder / "ledger").write_text(text.replace('"step":2,"count":1', '"step":2,"count":9'))
    found = verify(folder)
    assert outcomes(found)["ledger"] == CONTRADICTED
    assert found.epsilon is None  # nothing is computed from a ledger that is damaged
    claims = ("epsilon", "statement", "charges")
    assert {outcomes(found)[what] for what in claims} == {UNKNOWN}  # and none is passed over


@pytest.mark.parametrize("budget", ["noise", "steps", "batch", "no batch"])
def test_other_settings_than_those_of_the_run(copied: Copied, budget: str) -> None:
    folder = copied()
    stored = json.loads((folder / "recipe.json").read_text())["budget"]
    changed = {
        "noise": {**stored, "noise_multiplier": 1.5},
        "steps": {**stored, "steps": 5},
        "batch": {**stored, "expected_batch_size": 33},
        "no batch": {name: stored[name] for name in stored if name != "expected_batch_size"},
    }[budget]
    edit(folder / "recipe.json", budget=changed)
    found = outcomes(verify(folder))
    assert found["settings"] == found["files"] == found["charges"] == CONTRADICTED


@pytest.mark.parametrize("name", ["model.pt", "metrics.jsonl", "versions.json", "statement.txt"])
def test_a_file_that_was_changed_or_lost(copied: Copied, name: str) -> None:
    folder = copied()
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-2] + b" \n")
    words = {check.what: check.words for check in verify(folder).of(CONTRADICTED)}
    assert f"{name} was changed" in words["files"]
    (folder / name).unlink()
    words = {check.what: check.words for check in verify(folder).of(CONTRADICTED)}
    assert f"{name} is missing" in words["files"]


def test_other_weights(copied: Copied) -> None:
    folder = copied()
    (folder / "manifest.json").unlink()
    (folder / "model.pt").write_bytes(b"no weights")
    found = outcomes(verify(folder))
    assert found["weights"] == CONTRADICTED
    assert found["files"] == UNKNOWN


def test_metrics_that_the_model_does_not_have(copied: Copied) -> None:
    folder = copied()
    report = json.loads((folder / "result.json").read_text())["report"]
    report["by_group"]["female"]["accuracy"] = 0.999
    edit(folder / "result.json", report=report)
    assert outcomes(verify(folder, data=True))["metrics"] == CONTRADICTED


def test_a_run_made_before_there_were_manifests(copied: Copied) -> None:
    folder = copied()
    (folder / "manifest.json").unlink()
    found = verify(folder)
    assert {check.what for check in found.of(UNKNOWN)} == {"files", "data"}
    assert not found.of(CONTRADICTED)
    (folder / "ledger").unlink()
    found = verify(folder)
    unknown = {check.what for check in found.of(UNKNOWN)}
    assert unknown == {"ledger", "epsilon", "statement", "charges", "files", "data"}
    assert found.epsilon is None


def test_a_noise_that_was_calibrated(copied: Copied) -> None:
    """The noise that the run had is that of the epsilon which it spent, and of no other."""
    folder = copied()
    (folder / "manifest.json").unlink()
    stored = json.loads((folder / "result.json").read_text())
    budget = {**json.loads((folder / "recipe.json").read_text())["budget"], "accountant": "rdp"}
    del budget["noise_multiplier"]
    epsilon = Ledger.read(folder / "ledger").epsilon(1e-5, accountant="rdp")
    edit(folder / "result.json", epsilon=epsilon)
    for ratio, outcome in ((1.0, CONFIRMED), (1.001, UNKNOWN), (2.0, CONTRADICTED)):
        edit(folder / "recipe.json", budget={**budget, "epsilon": ratio * epsilon})
        assert outcomes(verify(folder))["charges"] == outcome
    assert stored["epsilon"] < epsilon


def test_an_unfinished_run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_SECONDS", 0.0)
    monkeypatch.setattr(keeping, "_SHARE", 0)
    spec = run_spec.read_spec(finished)

    def stop(step: int, steps: int) -> None:
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        running.run(spec, tmp_path, stop)
    found = verify(tmp_path / spec.folder)
    assert not found.of(CONTRADICTED)
    assert outcomes(found)["result"] == UNKNOWN
    assert outcomes(found)["checkpoint"] == CONFIRMED
    assert "4 of 6 planned steps" in next(c.words for c in found.checks if c.what == "charges")
    lines = (tmp_path / spec.folder / "ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / spec.folder / "ledger").write_bytes(b"".join(lines[:2]))
    assert outcomes(verify(tmp_path / spec.folder))["checkpoint"] == CONTRADICTED


def test_folders_that_are_no_runs(finished: Path, tmp_path: Path) -> None:
    assert runs_in(finished) == [finished]
    assert runs_in(finished.parent) == [finished]
    with pytest.raises(FileError, match="it has no recipe"):
        runs_in(tmp_path)
    with pytest.raises(FileError, match="There is no folder"):
        runs_in(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("result.json", "{", "is not JSON"),
        ("result.json", "[]", "not an object"),
        ("result.json", '{"epsilon": null}', "epsilon is None"),
        ("recipe.json", "{}", "cannot be used"),
        ("recipe.json", "[" * 100_000, "is not JSON"),
    ],
)
def test_damaged_files_are_named(copied: Copied, name: str, text: str, complaint: str) -> None:
    folder = copied()
    (folder / name).write_text(text)
    with pytest.raises(FileError, match=complaint) as error:
        verify(folder)
    assert str(folder / name) in str(error.value)
