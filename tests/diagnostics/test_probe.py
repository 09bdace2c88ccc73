"""The probe: readings along a real run, without a trace."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import plumbline as pl
from plumbline.diagnostics import MEASUREMENTS, Probe, Sample, bias, to_json
from tests.training.small import data, network, private


def held_aside() -> tuple[torch.Tensor, torch.Tensor]:
    return data(records=30, seed=9)


def test_readings_come_every_so_many_steps_and_are_the_diagnostics() -> None:
    probe = Probe(held_aside(), every=2, measure=list(MEASUREMENTS))
    run = private()
    run.fit([probe], progress=False)
    assert [reading.step for reading in probe.readings] == [2, 4]
    x, y = held_aside()
    sample = Sample.take(
        run.model,
        lambda: nn.functional.cross_entropy(run.model(x), y, reduction="none"),
        pl.methods.dpsgd(clip=0.5).clipping,
    )
    last = probe.readings[-1]
    assert last.epsilon == run.epsilon()
    assert last.results["bias"] == bias(sample)
    assert last.successive_cosine is not None
    assert probe.readings[0].successive_cosine is None


def test_looking_leaves_no_trace() -> None:
    def weights(probes: list[Probe]) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2))
        run = private(model)
        run.fit(probes, progress=False)
        return [p.detach().clone() for p in model.parameters()]

    for with_probe, without in zip(
        weights([Probe(held_aside(), every=1)]), weights([]), strict=True
    ):
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


def test_the_file_says_that_epsilon_covers_none_of_it(tmp_path: Path) -> None:
    groups = torch.arange(30) % 2
    probe = Probe(held_aside(), every=1, sensitive_features=groups)
    private().fit([probe], progress=False)
    probe.write(tmp_path / "probe.jsonl")
    first, *rest = [
        json.loads(line) for line in (tmp_path / "probe.jsonl").read_text().splitlines()
    ]
    assert "not covered by epsilon" in first["label"]
    assert [line["step"] for line in rest] == [1, 2, 3, 4]
    assert set(rest[0]["results"]["norms"]["by_group"]) == {"0", "1"}
    assert rest[0]["results"] == json.loads(json.dumps(to_json(probe.readings[0].results)))


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="no measurement 'sharpness'; there are bias"):
        Probe(held_aside(), measure=["sharpness"])
    with pytest.raises(ValueError, match="every is 0"):
        Probe(held_aside(), every=0)
