"""The probe: readings along a real run, without a trace."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import plumbline as pl
from plumbline.diagnostics import DIAGNOSTICS, Look, Probe, Sample, Undefined, bias, sample_of
from plumbline.diagnostics.base import cosine
from tests.diagnostics.problems import loss_of
from tests.training.small import LOSS, RECORDS, budget, network, private

CHOSEN = torch.arange(0, RECORDS, 2)


def test_readings_come_every_so_many_steps_and_after_the_last() -> None:
    probe = Probe(every=3, records=CHOSEN, measure=["bias"])
    run = private()
    run.fit([probe], progress=False)
    assert [reading.step for reading in probe.readings] == [3, 4]
    sample = Sample.take(run.model, loss_of, run.fetch(CHOSEN), pl.methods.dpsgd(clip=0.5).clipping)
    last = probe.readings[-1]
    assert last.epsilon == run.epsilon()
    assert last.records == len(CHOSEN)
    assert vars(last.results["bias"]) == {**vars(bias(sample)), "by_group": {}}


def test_the_records_are_chosen_by_the_seed() -> None:
    looks: list[Look] = []

    def kept(look: Look) -> float:
        looks.append(look)
        return 0.0

    for seed in (0, 0, 1):
        private().fit([Probe(every=4, records=12, measure=[kept], seed=seed)], progress=False)
    first, again, other = (look.units for look in looks)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first) == len(set(first.tolist())) == 12


def test_looking_leaves_no_trace() -> None:
    def weights(probes: list[Probe]) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2))
        private(model).fit(probes, progress=False)
        return [p.detach().clone() for p in model.parameters()]

    everything = Probe(every=1, records=30, measure=list(DIAGNOSTICS))
    for with_probe, without in zip(weights([everything]), weights([]), strict=True):
        assert torch.equal(with_probe, without)


def test_the_released_gradient_is_the_update_of_the_last_step() -> None:
    model = network()
    run = private(model, lr=1.0)
    assert run.released is None
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run.step(next(iter(run)))
    assert run.released is not None
    for name, p in model.named_parameters():
        torch.testing.assert_close(before[name] - run.released[name], p.detach())


def test_successive_gradients_are_of_adjacent_steps() -> None:
    clipped: list[Any] = []
    released: list[Any] = []

    def keep(run: pl.Private, info: Any) -> None:
        clipped.append(sample_of(run, CHOSEN).clipped_mean)
        released.append(run.released)

    probe = Probe(every=3, records=CHOSEN, measure=["successive_cosines"])
    private(plan=budget(steps=8)).fit([keep, probe], progress=False)
    assert [one.step for one in probe.readings] == [3, 6, 8]
    for one in probe.readings:
        found, at = one.results["successive_cosines"], one.step - 1
        assert found["clipped"] == pytest.approx(cosine(clipped[at], clipped[at - 1]))
        assert found["released"] == cosine(released[at], released[at - 1])


def test_a_window_over_iterates_is_of_the_last_steps() -> None:
    probe = Probe(every=2, records=CHOSEN, measure=["over_iterates", "sampling_noise"])
    private(plan=budget(steps=6)).fit([probe], progress=False)
    first, *rest = (one.results["over_iterates"] for one in probe.readings)
    assert isinstance(first, Undefined)
    for one, reading in zip(rest, probe.readings[1:], strict=True):
        assert 0 < one.tau < reading.results["sampling_noise"].tau + 0.05


def test_what_is_measured_once_is_measured_after_the_last_step_in_evaluation_mode() -> None:
    modes: list[bool] = []

    def mode(look: Look) -> float:
        modes.append(look.private.model.training)
        return 0.0

    from plumbline.diagnostics.look import Diagnostic

    probe = Probe(every=2, records=CHOSEN, measure=["bias", "interpolation", mode])
    probe._diagnostics["mode"] = Diagnostic(mode, when="end")
    run = private()
    probe.begin(run)
    run.fit([probe], progress=False)
    along, _, end = probe.readings
    assert (along.when, set(along.results)) == ("along", {"bias"})
    assert (end.when, set(end.results)) == ("end", {"interpolation", "mode"})
    assert modes == [False]
    assert run.model.training
    found = end.results["interpolation"]
    x, y = run.fetch(CHOSEN)
    at = {position: loss for position, loss in zip(*found.values(), strict=True)}
    assert at[1.0] == pytest.approx(float(LOSS(run.model(x), y).detach().mean()))
    assert at[0.0] == pytest.approx(float(LOSS(network()(x), y).detach().mean()))


def test_a_reading_is_a_row_of_plain_values_by_group_name() -> None:
    groups = torch.arange(RECORDS) % 2
    rows: list[str] = []
    probe = Probe(
        every=2,
        records=30,
        measure=["bias", "norms"],
        group_names={0: "even", 1: "odd"},
        on_reading=lambda reading: rows.append(json.dumps(reading.to_json(), allow_nan=False)),
    )
    private(sensitive_features=groups).fit([probe], progress=False)
    last = json.loads(rows[-1])
    assert (last["step"], last["records"]) == (4, 30)
    assert set(last["norms"]["by_group"]) == set(last["bias"]["by_group"]) == {"even", "odd"}


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="every is 0"):
        Probe(every=0)
    with pytest.raises(ValueError, match="records is 0"):
        Probe(records=0)
