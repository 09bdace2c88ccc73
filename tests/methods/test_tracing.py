"""The trace of a step: every question with its value, every answer passed on, and the update."""

from collections.abc import Generator

import torch
from torch import Tensor

from plumbline.mechanism.release import Query, answered
from plumbline.methods.tracing import Values, flat, traced

Steps = Generator[Query, dict[str, Tensor], dict[str, Tensor]]


def step() -> Steps:
    """A step that asks for a count without noise, and then for two tensors as one vector."""
    count = yield Query(value=torch.tensor([3.0]), sensitivity=1.0, sigma=0.0, name="count")
    both = {"a": torch.ones(2), "b": torch.full((1, 2), 2.0)}
    noisy = yield Query(value=both, sensitivity=0.5, sigma=4.0)
    return {name: value + count["value"] for name, value in noisy.items()}


def test_a_single_tensor_has_a_name_too() -> None:
    query = next(step())
    assert list(query.named) == ["value"]
    assert query.named["value"] is query.value


def test_each_question_has_its_answer_and_the_result_is_returned() -> None:
    asked: list[str] = []

    def answer(query: Query) -> dict[str, Tensor]:
        asked.append(query.name)
        return {name: 10 * value for name, value in query.named.items()}

    update = answered(step(), answer)
    assert asked == ["count", "gradient"]
    assert torch.equal(update["a"], torch.full((2,), 40.0))
    assert torch.equal(update["b"], torch.full((1, 2), 50.0))


def test_a_trace_has_the_questions_their_exact_values_and_their_noise() -> None:
    given: list[tuple[int, list[str], float]] = []

    def answers(place: int, value: Values, std: float) -> Values:
        given.append((place, list(value), std))
        return {name: torch.zeros_like(one) for name, one in value.items()}

    trace, update = traced(step(), answers)
    assert trace.asked == [("count", 1.0, 0.0), ("gradient", 0.5, 4.0)]
    assert [value.tolist() for value in trace.values] == [[3.0], [1.0, 1.0, 2.0, 2.0]]
    assert all(value.dtype == torch.float64 for value in trace.values)
    # What has no noise is given some all the same: answers are public, whatever they are.
    assert given == [(0, ["value"], 1.0), (1, ["a", "b"], 2.0)]
    assert trace.left == {}
    assert flat(update).tolist() == [0.0] * 4
