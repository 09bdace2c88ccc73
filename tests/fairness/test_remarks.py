"""What metrics come to, in words."""

import numpy as np
import pytest
import torch

from plumbline.fairness import GroupReport, NumberOutcomes, Outcomes, across_seeds, evaluate
from plumbline.fairness.metrics import EXPECTED
from plumbline.fairness.remarks import (
    baseline_of,
    beside_main,
    gap_words,
    largest_gap,
    main_metric,
    not_better,
    remarks,
    small_words,
)

GROUPS = {0: "women", 1: "men"}


def report(
    labels: list[int], chances: list[float], groups: list[int], threshold: float = 0.5
) -> GroupReport:
    """Of a model that gives these probabilities of class 1."""
    p = torch.tensor(chances, dtype=torch.float64)
    outcomes = Outcomes.from_logits(
        torch.stack([(1 - p).log(), p.log()], 1), torch.tensor(labels), threshold=threshold
    )
    return evaluate(outcomes, sensitive_features=np.array(groups), names=GROUPS)


def rare(threshold: float = 0.5) -> GroupReport:
    """Of 1,000 records 3 in 100 are positive, and all have a probability below one half."""
    labels = [1] * 30 + [0] * 970
    chances = [0.2] * 24 + [0.05] * 6 + [0.2] * 100 + [0.02] * 870
    return report(labels, chances, [0, 1] * 500, threshold)


def test_a_model_that_says_no_to_everybody_is_called_that_and_its_ranking_is_told() -> None:
    said = not_better(rare())
    assert said is not None
    assert "gives all test records the same class: its accuracy is that class's share." in said
    assert "AUC 0.9" in said
    assert "--threshold auto" in said


def test_with_a_lower_threshold_the_same_model_tells_the_classes_apart() -> None:
    said = not_better(rare(threshold=0.1), "DP-SGD")
    assert said is not None
    assert said.startswith("DP-SGD is right less often than one class for all would be (89.4%, not")
    assert "balanced accuracy is 84.8%" in said


def test_a_model_that_knows_nothing_does_not_beat_the_baseline() -> None:
    labels, chances = [0] * 70 + [1] * 30, [0.4] * 60 + [0.6] * 10 + [0.4] * 27 + [0.6] * 3
    said = not_better(report(labels, chances, [0, 1] * 50))
    assert said == (
        "The model does not beat the baseline: its accuracy is 63.0%, and one class for all would "
        "have 70.0%."
    )


@pytest.mark.parametrize(
    ("found", "wrongly", "words"),
    [
        (2, 1, "does not clearly beat the baseline: its accuracy is 83.0%, and one class for all"),
        (6, 4, "is right hardly more often than one class for all would be (84.0%, not 82.0%)"),
    ],
)
def test_a_model_that_chance_may_put_above_the_baseline_is_not_said_to_be_below(
    found: int, wrongly: int, words: str
) -> None:
    """Of 100 records 18 are positive; some of these are found, and some others with them."""
    labels = [1] * 18 + [0] * 82
    chances = [0.8] * found + [0.4] * (18 - found) + [0.8] * wrongly + [0.3] * (82 - wrongly)
    said = not_better(report(labels, chances, [0, 1] * 50))
    assert said is not None
    assert words in said


def test_nothing_is_said_of_a_model_that_is_better() -> None:
    labels = [0] * 50 + [1] * 50
    assert not_better(report(labels, [0.1] * 50 + [0.9] * 50, [0, 1] * 50)) is None


def test_a_gap_that_base_rates_explain_is_called_that() -> None:
    # All are told no: women are right in 90 of 100 cases, men in 60.
    labels = [1] * 10 + [0] * 90 + [1] * 40 + [0] * 60
    said = gap_words(report(labels, [0.2] * 200, [0] * 100 + [1] * 100))
    assert said == (
        "Accuracy differs by 30.0 points between groups (women, men), which their base rates "
        "explain: if it recognised each class equally well in all groups, it would differ by 30.0 "
        "points."
    )


def test_a_gap_that_they_do_not_explain_is_not() -> None:
    labels = [1, 0] * 100
    chances = [0.9, 0.1] * 50 + [0.9, 0.9] * 50
    said = gap_words(report(labels, chances, [0] * 100 + [1] * 100))
    assert said == "Accuracy differs by 50.0 points between groups (women, men)."


def test_base_rates_do_not_explain_the_gap_of_a_model_that_knows_the_classes() -> None:
    # One class for all would be right for 80 of 100 women and 20 of 100 men. The model recognises
    # nine in ten of either class of women, and seven in ten of men's: that is its own doing.
    labels = [1] * 20 + [0] * 80 + [1] * 80 + [0] * 20
    women = [0.9] * 18 + [0.1] * 2 + [0.1] * 72 + [0.9] * 8
    men = [0.9] * 56 + [0.1] * 24 + [0.1] * 14 + [0.9] * 6
    found = report(labels, women + men, [0] * 100 + [1] * 100)
    said = gap_words(found)
    assert said is not None
    assert said.startswith("Accuracy differs by 20.0 points between groups (women, men). ")
    # 100 positives of whom 74 are recognised, 100 negatives of whom 86 are.
    expected = {group: values[EXPECTED] for group, values in found.by_group.items()}
    assert expected == pytest.approx(
        {"women": 0.2 * 0.74 + 0.8 * 0.86, "men": 0.8 * 0.74 + 0.2 * 0.86}
    )


def test_the_largest_gap_is_that_of_true_positive_rates() -> None:
    labels = [1, 0] * 100
    chances = [0.9, 0.1] * 50 + [0.1, 0.1] * 50
    assert largest_gap(report(labels, chances, [0] * 100 + [1] * 100)) == (
        "true positive rate",
        1.0,
        "women, men",
    )


def test_a_small_test_part_and_small_groups_are_told() -> None:
    found = report([0, 1] * 45, [0.2, 0.9] * 45, [0] * 80 + [1] * 10)
    assert small_words(found) == (
        "The test part has 90 records: too few to judge a model by. Too few records to judge: men."
    )
    assert remarks(found)[-1] == small_words(found)


def test_means_over_seeds_are_told_alike() -> None:
    both = across_seeds([rare(), rare()])
    assert not_better(both) == not_better(rare())
    assert gap_words(both) == gap_words(rare())


def test_a_number_is_compared_with_the_mean() -> None:
    labels = np.linspace(0, 1000, 200)
    bad = evaluate(
        NumberOutcomes(labels, np.full(200, 900.0)), sensitive_features=np.arange(200) % 2
    )
    said = not_better(bad)
    assert said is not None
    assert "does not beat the mean of the target: its error (RMSE) is 494, that of" in said
    group = np.arange(200) // 100
    good = evaluate(NumberOutcomes(labels, labels + 10 + 5 * group), sensitive_features=group)
    assert not_better(good) is None
    assert gap_words(good) == "The error (RMSE) differs by 5 between groups (1, 0)."


def test_a_gap_in_error_that_the_spread_explains_is_called_that() -> None:
    group = np.arange(400) // 200
    labels = np.tile(np.linspace(-1, 1, 200), 2) * np.where(group, 300, 100)
    alike = evaluate(NumberOutcomes(labels, 0.5 * labels), sensitive_features=group)
    size = 0.5 * (300 - 100) * np.sqrt(np.mean(np.linspace(-1, 1, 200) ** 2))
    assert gap_words(alike) == (
        f"The error (RMSE) differs by {size:.3g} between groups (1, 0), which the spread of their "
        "values explains: if it explained the same share of the variance in all groups, it would "
        f"differ by {size:.3g}."
    )


@pytest.mark.parametrize(
    ("overall", "main", "beside"),
    [
        (rare().overall, "accuracy", ["balanced accuracy", "auc", "average precision"]),
        (
            evaluate(Outcomes([0, 1, 2] * 20, [0, 1, 2] * 20), sensitive_features=[0] * 60).overall,
            "accuracy",
            ["balanced accuracy", "macro f1", "calibration error"],
        ),
        (
            evaluate(
                NumberOutcomes([0.0, 1.0] * 30, [0.0, 1.0] * 30), sensitive_features=[0] * 60
            ).overall,
            "r2",
            ["rmse", "mae", "loss"],
        ),
    ],
)
def test_what_stands_first(overall: dict[str, float], main: str, beside: list[str]) -> None:
    assert main_metric(overall) == main
    assert beside_main(overall)[: len(beside)] == beside
    assert baseline_of(overall) == (0.0 if main == "r2" else overall["baseline accuracy"])
