"""What a run measures along the way: rows of plain values, and no trace of having looked."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plumbline.diagnostics import MEASUREMENTS, NOT_COVERED
from plumbline.experiments import RunSpec, run, running
from plumbline.experiments.files import read_rows
from plumbline.experiments.probing import (
    ALONG,
    BINS,
    DIAGNOSTICS,
    FINAL,
    FINAL_FILE,
    PLANE_BINS,
    Probing,
    check_names,
)
from plumbline.experiments.recipe import ProbePart
from tests.experiments.small import recipe

CHEAP = {"every": 4, "records": 48, "measure": ["bias", "norms"]}
EVERYTHING = {"every": 4, "records": 48, "measure": list(ALONG), "final": list(FINAL)}


def spec(probe: dict[str, Any] | None, method: int = 1) -> RunSpec:
    one = recipe(probe=probe)
    return RunSpec(one, one.methods[method], 0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that measured everything there is."""
    root = tmp_path_factory.mktemp("probing")
    return root / run(spec(EVERYTHING), root).folder


@pytest.fixture(scope="module")
def last(measured: Path) -> dict[str, Any]:
    """Its last reading."""
    return read_rows(measured / DIAGNOSTICS)[-1]


def test_everything_a_probe_knows_can_be_measured_along_a_run() -> None:
    assert set(ALONG) >= set(MEASUREMENTS) | {"excessive_risk", "hessian", "progress"}
    assert set(FINAL) == {"spectrum", "density", "landscape"}


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ({"measure": ["bias", "beauty"]}, "probe.measure has 'beauty'; .* bias, .*hessian"),
        ({"final": ["bias"]}, "probe.final has 'bias'; .* spectrum, density, landscape"),
    ],
)
def test_a_name_that_nothing_is_measured_under_is_refused(
    part: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_names(ProbePart(every=1, **part))


def test_readings_come_every_few_steps_and_after_the_last(measured: Path) -> None:
    lines = (measured / DIAGNOSTICS).read_text().splitlines()
    assert json.loads(lines[0]) == {"label": NOT_COVERED}
    rows = read_rows(measured / DIAGNOSTICS)
    assert [row["step"] for row in rows] == [4, 8, 10]
    assert all(0 < row["epsilon"] < 1 and row["records"] == 48 for row in rows)
    assert all(set(ALONG) <= set(row) for row in rows)


def test_norms_are_counted_and_not_listed(last: dict[str, Any]) -> None:
    histogram = last["norms"]["histogram"]
    assert len(histogram["edges"]) == BINS + 1
    assert sum(histogram["counts"]["all"]) == 48
    groups = [histogram["counts"][name] for name in ("male", "female")]
    assert [a + b for a, b in zip(*groups, strict=True)] == histogram["counts"]["all"]
    assert last["norms"]["clip"] == 0.5
    assert set(last["norms"]["clipped_by_group"]) == {"male", "female"}


def test_cosines_and_projections_are_counted_and_not_listed(last: dict[str, Any]) -> None:
    assert sum(last["symmetry"]["cosines"]["counts"]) == 48
    plane = last["symmetry"]["plane"]
    assert len(plane["counts"]) == len(plane["counts"][0]) == len(plane["steps"]) == PLANE_BINS
    assert sum(map(sum, plane["counts"])) + plane["outside"] == 48


def test_the_bias_has_its_parts_overall_and_by_group(last: dict[str, Any]) -> None:
    for found in (last["bias"], *last["bias"]["by_group"].values()):
        along, away = found["magnitude"], found["relative_direction"]
        assert found["cosine"] == pytest.approx(along / (along**2 + away**2) ** 0.5, abs=1e-4)
        assert found["relative"] == pytest.approx(((1 - along) ** 2 + away**2) ** 0.5, abs=1e-4)


def test_progress_and_risk_are_there_for_each_group(last: dict[str, Any]) -> None:
    losses = last["progress"]["loss_by_group"]
    assert min(losses.values()) <= last["progress"]["loss"] <= max(losses.values())
    assert last["progress"]["gradient_norm"] == pytest.approx(last["bias"]["gradient_norm"])
    for risk in last["excessive_risk"].values():
        assert risk["clip"] == pytest.approx(risk["magnitude"] + risk["direction"], abs=1e-6)
    assert set(last["hessian"]) == {"all", "male", "female"}


def test_the_final_measurements_are_in_a_file_of_their_own(measured: Path) -> None:
    final = json.loads((measured / FINAL_FILE).read_text())
    assert final["label"] == NOT_COVERED
    assert final["spectrum"]["largest"][0] == pytest.approx(max(final["density"]["values"]))
    assert len(final["landscape"]["losses"]) == len(final["landscape"]["steps"])


def test_looking_does_not_change_the_run(tmp_path: Path) -> None:
    with_probe = run(spec(CHEAP), tmp_path)
    without = run(spec(None), tmp_path)
    assert with_probe.report == without.report
    assert not (tmp_path / without.folder / DIAGNOSTICS).exists()


def test_a_reading_leaves_random_states_and_modes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    reading = Probing.after_step

    def watched(self: Probing, private: Any, info: Any) -> None:
        def state() -> list[Any]:
            modes = [module.training for module in private.model.modules()]
            numpy = np.random.get_state()  # noqa: NPY002
            return [torch.get_rng_state().tolist(), random.getstate(), list(numpy[1]), modes]

        before = state()
        reading(self, private, info)
        states.append(before == state())

    monkeypatch.setattr(Probing, "after_step", watched)
    run(spec(EVERYTHING | {"every": 10}), tmp_path)
    assert len(states) == 10
    assert all(states)


def test_a_method_without_a_bound_is_measured_too(tmp_path: Path) -> None:
    done = run(spec(CHEAP | {"measure": list(ALONG)}, method=0), tmp_path)
    row = read_rows(tmp_path / done.folder / DIAGNOSTICS)[-1]
    assert row["epsilon"] == "inf"
    assert row["norms"]["clip"] is None
    assert row["bias"]["cosine"] == pytest.approx(1)
    assert row["symmetry"]["bias"].startswith("undefined:")
    assert sum(row["symmetry"]["cosines"]["counts"]) == 48


def test_a_resumed_run_has_every_reading_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(spec(CHEAP), tmp_path / "whole")
    monkeypatch.setattr(running, "_SAVE_SECONDS", 0.0)

    def stop(step: int, steps: int) -> None:
        if step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(CHEAP), tmp_path / "cut", stop)
    path = tmp_path / "cut" / whole.folder / DIAGNOSTICS
    with path.open("a") as stream:  # a row beyond the checkpoint, and the last line of a kill
        stream.write(json.dumps({"step": 10, "bias": None}) + "\n" + '{"step": 1')
    run(spec(CHEAP), tmp_path / "cut")
    assert path.read_text() == (tmp_path / "whole" / whole.folder / DIAGNOSTICS).read_text()


def test_a_recipe_without_a_probe_has_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no part 'probe'"):
        Probing.of(spec(None), None, None, tmp_path)  # type: ignore[arg-type]
