"""What a model did on the test records."""

import math

import numpy as np
import pytest
import torch

from plumbline.fairness import Outcomes


def test_any_array_will_do(device: torch.device) -> None:
    labels = torch.tensor([0, 1, 1], device=device)
    predictions = np.array([0.0, 1.0, 0.0], np.float32)
    losses = torch.tensor([0.5, 0.25, 2.0], device=device, requires_grad=True)
    scores = torch.tensor([0.75, 0.5, 1.0], dtype=torch.bfloat16, device=device)
    outcomes = Outcomes(labels, predictions, losses, scores)
    assert len(outcomes) == 3
    assert outcomes.labels.tolist() == [0, 1, 1]
    assert outcomes.predictions.tolist() == [0, 1, 0]
    assert outcomes.correct.tolist() == [True, True, False]
    assert outcomes.losses is not None
    assert outcomes.losses.tolist() == [0.5, 0.25, 2.0]
    assert outcomes.scores is not None
    assert outcomes.scores.tolist() == [0.75, 0.5, 1.0]
    assert Outcomes([True, False], [False, False]).labels.tolist() == [1, 0]


def test_what_is_given_is_copied() -> None:
    labels = np.array([0, 1])
    outcomes = Outcomes(labels, labels)
    labels[:] = 7
    assert outcomes.labels.tolist() == [0, 1]


def test_logits_say_it_all(device: torch.device) -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 3.0]], device=device)
    outcomes = Outcomes.from_logits(logits, torch.tensor([0, 1], device=device))
    first, second = math.e**2 / (math.e**2 + 2), math.e**3 / (1 + math.e + math.e**3)
    assert outcomes.predictions.tolist() == [0, 2]
    assert outcomes.scores is not None
    assert outcomes.losses is not None
    np.testing.assert_allclose(outcomes.scores, [first, second], rtol=1e-12)
    np.testing.assert_allclose(
        outcomes.losses, [-math.log(first), 2 - math.log(second)], rtol=1e-12
    )
    own = Outcomes.from_logits(logits.cpu(), torch.tensor([0, 1]), losses=[1, 2])
    assert own.losses is not None
    assert own.losses.tolist() == [1, 2]


def test_a_diverged_model_has_outcomes() -> None:
    outcomes = Outcomes.from_logits(torch.full((2, 2), torch.nan), torch.tensor([0, 1]))
    assert outcomes.losses is not None
    assert np.isnan(outcomes.losses).all()


def test_a_softmax_may_round_above_one() -> None:
    outcomes = Outcomes([0], [0], [0.0], np.array([1.0000001], np.float32))
    assert outcomes.scores is not None
    assert outcomes.scores.tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(([0, 1], [0]), r"'labels': 2, 'predictions': 1", id="lengths"),
        pytest.param(([0, 1], [0, 1], [1.0]), r"'losses': 1", id="length-of-losses"),
        pytest.param(([], []), "no records", id="empty"),
        pytest.param(([0.5], [0]), "labels are of type float64 and not whole", id="fractions"),
        pytest.param(([0], [math.nan]), "predictions are of type float64", id="nan"),
        pytest.param((["a"], [0]), "labels are of type <U1", id="strings"),
        pytest.param(([0], [[0.1, 0.9]]), r"shape \(1, 2\).*from_logits", id="logits"),
        pytest.param(([0], [0], ["x"]), "losses are of type", id="losses"),
        pytest.param(([0], [0], [1.0], [1.5]), "score of record 0", id="scores"),
        pytest.param(
            ([0], [0], [1.0], [-0.5]), "score of record 0 is not between", id="negative-scores"
        ),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Outcomes(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 2)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \[n, C\]"):
        Outcomes.from_logits(torch.zeros(shape), torch.zeros(3, dtype=torch.long))
