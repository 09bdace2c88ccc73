"""The canary's gradient is its own, as long as it is made, and the idle entries are nobody's."""

import pytest
import torch

from plumbline.auditing.canary import SIZES, Canary, Words, idle, records
from plumbline.gradients import capture


@pytest.mark.parametrize("size", SIZES)
def test_no_other_record_touches_the_canary_s_entries(size: float) -> None:
    (words, sizes, targets), groups = records(Canary(size), others=3)
    model = Words(4, idle=5)
    losses = torch.nn.BCEWithLogitsLoss(reduction="none")
    gradients = capture(
        model, lambda model, one: losses(model(one[0], one[1]), one[2]), (words, sizes, targets)
    ).materialise()
    for name in ("first.weight", "second.weight"):
        touched = gradients[name][..., 0] != 0
        assert torch.equal(touched[:, :4], torch.eye(4, dtype=torch.bool))
        assert not touched[:, 4:].any()
    assert groups.tolist() == [0, 1, 0, 1]


def test_the_sizes_lie_on_both_sides_of_the_usual_bounds() -> None:
    norms = []
    for size in SIZES:
        (words, sizes, _), _ = records(Canary(size), others=3)
        slope = torch.sigmoid(Words(4, 0)(words, sizes))[-1] * size
        norms.append(float(slope.detach()) * 2**0.5)
    assert 0.98 < norms[0] < 1 < norms[1] < norms[2]
    assert 49.8 < norms[2] < 50 < norms[3]


def test_idle_entries_are_the_last_ones_of_the_second_table() -> None:
    values = {"first.weight": torch.ones(4, 1), "second.weight": torch.arange(7.0)[:, None]}
    assert idle(values, 3).tolist() == [4, 5, 6]
    assert idle(values, 3).dtype == torch.float64
