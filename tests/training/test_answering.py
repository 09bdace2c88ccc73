"""Questions meet noise in one place: declared ones only, at the scale that the question carries."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from plumbline.mechanism.noise import gaussian
from plumbline.mechanism.random_source import SecureSource, SeededSource
from plumbline.mechanism.release import GaussianQuery, Query
from plumbline.training.answering import Answers, UndeclaredQuery

MANY = 20_000


def declared(*asked: tuple[str, float]) -> tuple[GaussianQuery, ...]:
    return tuple(
        GaussianQuery(name=name, sensitivity=1.0, noise_multiplier=sigma) for name, sigma in asked
    )


def question(
    value: Tensor | dict[str, Tensor],
    sigma: float = 2.0,
    sensitivity: float = 1.0,
    name: str = "gradient",
) -> Query:
    return Query(value=value, sensitivity=sensitivity, sigma=sigma, name=name)


@pytest.fixture
def answers() -> Answers:
    return Answers(SeededSource(5), MANY, steps=3)


@pytest.mark.parametrize(
    ("query", "place", "what"),
    [
        pytest.param(question(torch.zeros(MANY), sigma=1.9), 0, "multiplier 1.9", id="less-noise"),
        pytest.param(question(torch.zeros(MANY), name="count"), 0, "'count'", id="another-name"),
        pytest.param(question(torch.zeros(MANY)), 1, "Question 2", id="one-more"),
        pytest.param(question(torch.zeros(MANY), sigma=0.0), 0, "multiplier 0.0", id="no-noise"),
    ],
)
def test_what_was_not_declared_is_refused(
    answers: Answers, query: Query, place: int, what: str
) -> None:
    with pytest.raises(UndeclaredQuery, match=f"{what}.*must be what is charged") as caught:
        answers.answer(query, declared(("gradient", 2.0)), 0, place)
    assert "[('gradient', 2.0)]" in str(caught.value)


@pytest.mark.parametrize(("sigma", "sensitivity"), [(2.0, 1.0), (0.5, 3.0), (1.0, 1e-4)])
def test_the_noise_has_the_declared_scale(
    answers: Answers, sigma: float, sensitivity: float
) -> None:
    value = torch.full((MANY,), 0.25, dtype=torch.float64)
    query = question(value, sigma, sensitivity)
    noisy = answers.answer(query, declared(("gradient", sigma)), 0, 0)["value"]
    standard = (noisy - value) / (sigma * sensitivity)
    # Of 20,000 standard Gaussians the mean has deviation 0.007, the spread 0.005; five of each.
    assert abs(float(standard.mean())) < 5 / math.sqrt(MANY)
    assert abs(float(standard.std()) - 1) < 5 / math.sqrt(2 * MANY)
    assert torch.equal(value, torch.full((MANY,), 0.25, dtype=torch.float64))


def test_the_noise_is_never_below_the_declared_scale(answers: Answers) -> None:
    # Rounding to the noise's grid adds to the sensitivity, and so to the noise.
    wide = answers.answer(question(torch.zeros(MANY).double()), declared(("gradient", 2.0)), 0, 0)
    exact = 2.0 * gaussian(SeededSource(5).stream("noise", 0), MANY)
    large = exact.abs() > 1e-3
    ratio = wide["value"][large] / exact[large]
    assert bool((ratio > 1).all())
    assert bool((ratio < 1 + 1e-8).all())


def test_the_noise_covers_the_rounding_that_a_question_states() -> None:
    """A value that was computed with rounding moves further than its sensitivity."""
    noisy = []
    for rounding in (0.0, 0.5):
        query = Query(value=torch.zeros(MANY).double(), sensitivity=3.0, sigma=2.0)
        query = dataclasses.replace(query, rounding=rounding)
        answers = Answers(SeededSource(5), MANY, steps=0)
        noisy.append(answers.answer(query, declared(("gradient", 2.0)), 0, 0)["value"])
    torch.testing.assert_close(noisy[1], 1.5 * noisy[0], rtol=1e-9, atol=1e-9)


def test_names_shapes_and_types_stay(answers: Answers) -> None:
    value = {"a": torch.ones(50, 100), "b": torch.ones(MANY - 5000, dtype=torch.float64)}
    noisy = answers.answer(question(value), declared(("gradient", 2.0)), 0, 0)
    assert {name: (t.shape, t.dtype) for name, t in noisy.items()} == {
        name: (t.shape, t.dtype) for name, t in value.items()
    }


def test_without_noise_the_value_itself_is_the_answer(answers: Answers) -> None:
    value = {"a": torch.randn(7)}
    found = answers.answer(question(value, sigma=0.0), declared(("gradient", 0.0)), 0, 0)
    assert torch.equal(found["a"], value["a"])


def test_every_question_and_every_step_has_its_own_noise(answers: Answers) -> None:
    asked = declared(("gradient", 1.0), ("count", 1.0), ("again", 1.0))
    draws = [
        answers.answer(question(torch.zeros(MANY), 1.0, name=query.name), asked, step, place)
        for step in range(2)
        for place, query in enumerate(asked)
    ]
    for first, one in enumerate(draws):
        for other in draws[:first]:
            correlation = torch.dot(one["value"], other["value"]) / MANY
            assert abs(float(correlation)) < 5 / math.sqrt(MANY)


def test_later_questions_may_have_another_size(answers: Answers) -> None:
    asked = declared(("gradient", 1.0), ("count", 4.0))
    answers.answer(question(torch.zeros(MANY), 1.0), asked, 0, 0)
    count = answers.answer(question(torch.zeros(3), 4.0, name="count"), asked, 0, 1)
    assert count["value"].shape == (3,)
    assert bool((count["value"] != 0).all())


def test_seeded_noise_repeats_and_secure_noise_does_not() -> None:
    def noise(source: SeededSource | SecureSource) -> Tensor:
        with_noise = Answers(source, 5, steps=1)
        found = with_noise.answer(question(torch.zeros(5)), declared(("gradient", 2.0)), 0, 0)
        with_noise.close()
        return found["value"]

    assert torch.equal(noise(SeededSource(1)), noise(SeededSource(1)))
    assert not torch.equal(noise(SecureSource()), noise(SecureSource()))
