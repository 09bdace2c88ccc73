import pytest
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tests.training.runs import Run


def test_schedulers_are_stepped_with_every_update() -> None:
    run = Run("adam and schedulers")
    run.train(run.make(), 4)
    assert [scheduler.last_epoch for scheduler in run.schedulers] == [4, 4]


def test_one_that_is_stepped_outside_as_well_is_refused_before_a_charge() -> None:
    run = Run("adam and schedulers")
    private = run.train(run.make(), 2)
    run.schedulers[1].step()
    with pytest.raises(RuntimeError, match=r"Leave scheduler\.step\(\) out of the loop"):
        run.train(private, 1)
    assert (private.steps_done, private.charged) == (2, 2)


def test_one_that_follows_a_measured_value_is_refused() -> None:
    run = Run()
    run.schedulers = [ReduceLROnPlateau(run.optimizer)]
    with pytest.raises(ValueError, match="ReduceLROnPlateau, which follows a measured value"):
        run.make()
