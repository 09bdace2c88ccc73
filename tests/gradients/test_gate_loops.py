import numpy as np
import pytest

from plumbline.gradients import gate_loops

NUMBERS = np.concatenate(
    [np.linspace(-80, 80, 3001), np.geomspace(1e-30, 1, 200), -np.geomspace(1e-30, 1, 200)]
).astype(np.float32)


@pytest.mark.parametrize(
    ("loop", "exact"),
    [(gate_loops.sigmoid, lambda x: 1 / (1 + np.exp(-x))), (gate_loops.tanh, np.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_within_three_units_in_the_last_place(loop, exact) -> None:
    found = np.array([loop(x) for x in NUMBERS], np.float64)
    truth = exact(NUMBERS.astype(np.float64))
    np.testing.assert_allclose(found, truth, rtol=3 * 2.0**-24, atol=0)


def test_far_out_and_not_a_number() -> None:
    far = np.float32(np.inf)
    assert [gate_loops.tanh(far), gate_loops.tanh(-far), gate_loops.sigmoid(far)] == [1, -1, 1]
    assert 0 <= gate_loops.sigmoid(-far) < 1e-37
    assert np.isnan(gate_loops.tanh(np.float32(np.nan)))
    assert np.isnan(gate_loops.sigmoid(np.float32(np.nan)))
