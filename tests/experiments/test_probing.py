"""The probe of a recipe: rows of plain values in the run's folder, once each, and no trace."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plumbline.diagnostics import DIAGNOSTICS as NAMED
from plumbline.diagnostics import NOT_COVERED, Probe
from plumbline.experiments import RunSpec, run
from plumbline.experiments.files import read_rows
from plumbline.experiments.probing import DIAGNOSTICS, FINAL_FILE, START, probe_of
from plumbline.experiments.recipe import ProbePart, RecipeError
from plumbline.training import keeping
from tests.experiments.small import recipe

CHEAP = {"every": 4, "records": 48, "measure": ["bias", "norms"]}
EVERYTHING = {"every": 4, "records": 48, "measure": list(NAMED)}
ALONG = {name for name, one in NAMED.items() if one.when == "along"}


def spec(probe: dict[str, Any] | None, method: int = 1) -> RunSpec:
    one = recipe(probe=probe)
    return RunSpec(one, one.methods[method], 0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that measured everything there is."""
    root = tmp_path_factory.mktemp("probing")
    return root / run(spec(EVERYTHING), root).folder


def test_a_name_that_nothing_is_measured_under_is_refused_in_the_recipe() -> None:
    with pytest.raises(ValueError, match="no diagnostic 'beauty'"):
        ProbePart(every=1, measure=("bias", "beauty"))
    with pytest.raises(RecipeError, match=r"probe\.measure: there is no diagnostic 'norm'"):
        recipe(probe={"every": 1, "measure": ["norm"]})
    with pytest.raises(RecipeError, match="no field 'final'"):
        recipe(probe={"every": 1, "final": ["spectrum"]})


def test_readings_come_every_few_steps_and_after_the_last(measured: Path) -> None:
    lines = (measured / DIAGNOSTICS).read_text().splitlines()
    assert json.loads(lines[0]) == {"label": NOT_COVERED}
    rows = read_rows(measured / DIAGNOSTICS)
    assert [row["step"] for row in rows] == [4, 8, 10]
    assert all(0 < row["epsilon"] < 1 and row["records"] == 48 for row in rows)
    assert all(set(row) - {"step", "epsilon", "records"} == ALONG for row in rows)
    assert set(rows[-1]["bias"]["by_group"]) == {"male", "female"}


def test_what_is_measured_at_the_end_is_in_a_file_of_its_own(measured: Path) -> None:
    final = json.loads((measured / FINAL_FILE).read_text())
    assert final["label"] == NOT_COVERED
    assert final["step"] == 10
    assert set(NAMED) - ALONG <= set(final)


def test_looking_does_not_change_the_run(tmp_path: Path) -> None:
    with_probe = run(spec(CHEAP), tmp_path)
    without = run(spec(None), tmp_path)
    assert with_probe.report == without.report
    assert not (tmp_path / without.folder / DIAGNOSTICS).exists()


def test_a_reading_leaves_random_states_and_modes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    reading = Probe.after_step

    def watched(self: Probe, private: Any, info: Any) -> None:
        def state() -> list[Any]:
            modes = [module.training for module in private.model.modules()]
            numpy = np.random.get_state()  # noqa: NPY002
            return [torch.get_rng_state().tolist(), random.getstate(), list(numpy[1]), modes]

        before = state()
        reading(self, private, info)
        states.append(before == state())

    monkeypatch.setattr(Probe, "after_step", watched)
    run(spec(EVERYTHING | {"every": 10}), tmp_path)
    assert len(states) == 10
    assert all(states)


def test_a_method_without_a_bound_is_measured_too(tmp_path: Path) -> None:
    done = run(spec(CHEAP, method=0), tmp_path)
    row = read_rows(tmp_path / done.folder / DIAGNOSTICS)[-1]
    assert row["epsilon"] == "inf"
    assert row["bias"]["cosine"] == pytest.approx(1)


def test_a_resumed_run_has_every_reading_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = CHEAP | {"measure": ["bias", "norms", "interpolation"]}
    whole = run(spec(both), tmp_path / "whole")
    monkeypatch.setattr(keeping, "_SECONDS", 0.0)
    monkeypatch.setattr(keeping, "_SHARE", 0)

    def stop(step: int, steps: int) -> None:
        if step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(both), tmp_path / "cut", stop)
    path = tmp_path / "cut" / whole.folder / DIAGNOSTICS
    assert (path.parent / START).is_file()
    with path.open("a") as stream:  # a row beyond the checkpoint, and the last line of a kill
        stream.write(json.dumps({"step": 10, "bias": None}) + "\n" + '{"step": 1')
    run(spec(both), tmp_path / "cut")
    for name in (DIAGNOSTICS, FINAL_FILE):
        expected = (tmp_path / "whole" / whole.folder / name).read_text()
        assert (path.parent / name).read_text() == expected


def test_a_recipe_without_a_probe_has_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no part 'probe'"):
        probe_of(spec(None), None, None, tmp_path)  # type: ignore[arg-type]
