"""The door: one list of arguments, and a run that begins or goes on by its checkpoint."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import torch

import plumbline as pl
from plumbline import Ledger
from plumbline.training import CheckpointError, Setup
from tests.training.runs import STEPS, Run, charged, weights


def test_the_arguments_are_the_fields_of_a_setup() -> None:
    given = inspect.signature(pl.make_private).parameters
    of_a_loader = ["workers", "replaced"]  # what a DataLoader stands for
    fields = [one for one in dataclasses.fields(Setup) if one.name not in of_a_loader]
    assert list(given) == [field.name for field in fields]
    assert [one.name for one in dataclasses.fields(Setup)] == [*given, *of_a_loader]
    for field in fields:
        default = inspect.Parameter.empty
        if field.default is not dataclasses.MISSING:
            default = field.default
        assert given[field.name].default is default or given[field.name].default == default
        assert given[field.name].annotation == field.type


def test_a_run_begins_and_goes_on_by_the_same_call(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.pt"
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run("adam and schedulers", {"ledger": ledger})
        private = run.train(run.make(checkpoint=checkpoint), 4)
        private.save()
        at, rates = weights(run.model), [group["lr"] for group in run.optimizer.param_groups]
        name = private.run
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run("adam and schedulers", {"ledger": ledger})
        private = run.make(checkpoint=checkpoint)
        assert (private.run, private.steps_done) == (name, 4)
        assert torch.equal(weights(run.model), at)
        assert [group["lr"] for group in run.optimizer.param_groups] == rates
        run.train(private)
    assert charged(tmp_path / "ledger") == STEPS


def test_a_secure_run_killed_before_it_was_saved_is_the_same_run(tmp_path: Path) -> None:
    """Its first checkpoint is written at once, and what it released is in the journal beside it."""
    checkpoint = tmp_path / "run.pt"
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger})
        run.train(run.make(checkpoint=checkpoint), 3)
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(checkpoint=checkpoint))
        assert (private.steps_done, private.made, private.lost) == (STEPS, STEPS, 0)
        assert len(ledger.runs()) == 1
    assert charged(tmp_path / "ledger") == STEPS


def test_a_checkpoint_that_cannot_be_written_is_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        with pytest.raises(CheckpointError, match="Check the path, and create its folder"):
            Run(settings={"ledger": ledger}).make(checkpoint=tmp_path / "nowhere" / "run.pt")
        assert ledger.entries() == []


def test_saving_needs_a_file() -> None:
    with pytest.raises(ValueError, match="There is no file to save to: give a path"):
        Run().make().save()


def test_the_users_method_is_not_touched() -> None:
    method = pl.methods.adaptive()
    before = method.state_dict()
    run = Run(settings={"method": method})
    private = run.train(run.make(), 3)
    assert private.method is not method
    assert method.state_dict() == before != private.method.state_dict()
