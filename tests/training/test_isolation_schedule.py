"""When records are tested for mixing, and that what is fetched is tested beside the model."""

from typing import Any

import pytest
import torch
from plumbline.training.isolation_schedule import BadRecords
from torch import Tensor, nn

from plumbline.gradients.errors import RecordsMixError
from tests.training.small import LOSS, RECORDS, budget, data, private, run

ALL = budget(expected_batch_size=RECORDS, steps=8)


def test_a_module_that_changes_its_mode_is_tested_again() -> None:
    frozen = nn.BatchNorm1d(6, affine=False)
    model = nn.Sequential(frozen, nn.Linear(6, 2)).train()
    frozen.eval()
    mine = private(model, plan=ALL)
    run(mine, 3)
    before = frozen.running_mean.clone()
    model.train()
    with pytest.raises(RecordsMixError, match="'running_mean'"):
        run(mine)
    assert mine.steps_done == 3
    assert torch.equal(frozen.running_mean, before)


def test_a_frozen_table_that_is_rewritten_by_a_later_record() -> None:
    table = nn.Embedding.from_pretrained(torch.eye(6), max_norm=1.0)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(6, 2))
    tokens = torch.zeros(RECORDS, 1, dtype=torch.long)
    tokens[: RECORDS - 1, 0] = torch.arange(RECORDS - 1) % 5
    tokens[-1] = 5
    with torch.no_grad():
        table.weight[5] *= 3  # only the last record's token is too long
    mine = private(model, (tokens, torch.zeros(RECORDS, dtype=torch.long)), plan=ALL)
    with pytest.raises(
        RecordsMixError, match=r"frozen parameter 'weight' of the module '0' .*the model anew"
    ):
        run(mine)
    assert mine.charged == 0


def test_a_loss_that_is_divided_by_the_batch() -> None:
    mine = private(plan=ALL, loss=lambda output, target: LOSS(output, target) / len(target))
    with pytest.raises(RecordsMixError, match="divide no loss"):
        run(mine)


class OnlyInTraining(nn.Module):
    """Gives two outputs in training, and one otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.drop = nn.Linear(6, 2), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        y = self.head(self.drop(x))
        return (y, y) if self.training else y


def test_a_loss_that_needs_the_training_mode() -> None:
    run(private(OnlyInTraining(), plan=ALL, loss=lambda both, target: LOSS(both[1], target)))


def test_the_tests_leave_no_trace_in_a_run() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(private(plan=ALL), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_of_records_that_are_not_finite_is_told() -> None:
    x, y = data()
    x[::2] = torch.nan
    with pytest.warns(BadRecords, match=r"of 16 records .* look for missing values"):
        run(private(dataset=(x, y), plan=ALL), 1)
