"""Weights that something beside the run has changed: warned of once, and said in the statement."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import plumbline as pl
from plumbline.training import WeightsMoved
from tests.training.small import LOSS, data, private

SAID = re.compile(r"After (\d+) of the steps, something\s+beside the run has changed the weights")


def said(run: pl.Private) -> int:
    found = SAID.search(" ".join(run.statement().split()))
    return 0 if found is None else int(found[1])


def second_optimizer(model: nn.Module) -> None:
    """What a hook of one's own can do: a step on the exact loss of all records."""
    x, y = data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LOSS(model(x), y).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def train(run: pl.Private, steps: int = 4) -> None:
    """Steps, with a second optimizer and a look at the average between them."""
    for batch in run:
        run.step(batch)
        if run.steps_done == steps:
            return
        second_optimizer(run.model)
        if run.average is not None:
            with run.averaged():
                pass


@pytest.mark.parametrize("averaging", [None, 0.9])
def test_an_optimizer_beside_the_run_is_warned_of_once_and_stated(averaging: float | None) -> None:
    run = private(averaging=averaging)
    with pytest.warns(WeightsMoved) as found:
        train(run)
    assert [one.filename for one in found] == [__file__]
    assert said(run) == run.moved == 3  # not before the first step
    second_optimizer(run.model)
    assert said(run) == run.moved == 4  # no step follows that could notice it


@pytest.mark.parametrize("what", ["a buffer", "a frozen weight"])
def test_a_change_of_what_is_not_trained_is_stated_too(what: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 2), nn.Linear(2, 2))
    model[2].requires_grad_(False)
    run = private(model)
    batches = iter(run)
    run.step(next(batches))
    model(data()[0])
    assert said(run) == 0
    changed = model[0].running_mean if what == "a buffer" else model[2].weight
    with torch.no_grad():
        changed += data()[0].mean()  # an exact answer about the records
    assert said(run) == 1
    with pytest.warns(WeightsMoved):
        run.step(next(batches))
    assert said(run) == run.moved == 1


def test_a_change_through_data_is_noticed_and_one_that_is_undone_is_not() -> None:
    run = private()

    def halve_once() -> None:
        for batch in run:
            run.step(batch)
            for weight in run.model.parameters():
                kept = weight.data.clone()
                weight.data.mul_(0.5)
                if run.steps_done != 2:  # as an average that is swapped in to be looked at
                    weight.data.copy_(kept)

    with pytest.warns(WeightsMoved):
        halve_once()
    assert said(run) == run.moved == 1


def test_a_run_by_itself_says_nothing(tmp_path: Path) -> None:
    run = private(averaging=0.9, checkpoint=tmp_path / "run.pt", seed=None, deterministic=False)
    x, y = data()
    second_optimizer(run.model)  # before the first step, it is where the run begins
    for batch in run:
        run.step(batch)
        LOSS(run.model.eval()(x), y).mean().backward()
        run.model.train()
        run.model.zero_grad()
        with run.averaged() as model:
            model(x)
        run.save()
    assert said(run) == run.moved == 0


@pytest.mark.parametrize("secure", [True, False])
def test_a_run_that_goes_on_remembers(secure: bool, tmp_path: Path) -> None:
    noise = {"seed": None, "deterministic": False} if secure else {}
    run = private(checkpoint=tmp_path / "run.pt", **noise)
    with pytest.warns(WeightsMoved):
        train(run, 2)
    if not secure:  # a run with a seed has no journal
        run.save()
    run.close()
    again = private(checkpoint=tmp_path / "run.pt", **noise)
    assert again.steps_done == 2
    for batch in again:  # without a warning, which would be an error
        again.step(batch)
    assert said(again) == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_a_change_before_a_save_is_remembered_and_counted_once(steps: int, tmp_path: Path) -> None:
    noise = {"seed": None, "deterministic": False}
    run = private(checkpoint=tmp_path / "run.pt", **noise)
    run.step(next(iter(run)))
    second_optimizer(run.model)
    run.save()
    if steps:
        with pytest.warns(WeightsMoved):
            run.step(next(iter(run)))  # which the journal has, and no checkpoint
    run.close()
    again = private(checkpoint=tmp_path / "run.pt", **noise)
    assert again.steps_done == 1 + steps
    assert said(again) == said(run) == 1
