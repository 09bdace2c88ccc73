"""The verdict says what the numbers support, and no more."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.experiments.recipe import FoundPart
from plumbline.report import read, words
from plumbline.report.choosing import best, diagnosis, reference
from plumbline.report.reading import Study
from plumbline.report.tiles import tiles_of
from tests.report.made import METHODS, comparison

TWO = [
    {"name": "nonprivate"},
    {"name": "dpsgd", "origin": "paper", "settings": {"clip": 0.5}, "learning_rate": 0.01},
    {"name": "dpsgd", "origin": "tuned", "settings": {"clip": 0.5}, "learning_rate": 2.0},
]


def said(folder: Path, **changes: Any) -> list[str]:
    return words(read(comparison(folder / "c", **changes)))


def test_it_starts_with_what_privacy_costs_whom(tmp_path: Path) -> None:
    first = said(tmp_path)[0]
    assert first.startswith(
        "At epsilon 3.40 (delta 1e-5), dpsgd lost 7.0 ± 0.0 points of accuracy for male and "
        "7.0 ± 0.0 for female"
    )
    assert "standard error over 2 seeds" in first


def test_one_seed_says_that_it_cannot_be_sure(tmp_path: Path) -> None:
    sentences = said(tmp_path, seeds=(0,))
    assert "one seed cannot say how sure that is" in sentences[0]
    assert "±" not in sentences[0]
    assert any("on one seed, which cannot tell that from chance" in one for one in sentences)


def test_without_groups_the_cost_is_that_of_all(tmp_path: Path) -> None:
    assert "dpsgd lost 7.0 ± 0.0 points of accuracy, against" in said(tmp_path, groups=("all",))[0]


def test_without_a_nonprivate_run_no_cost_is_said(tmp_path: Path) -> None:
    first = said(tmp_path, methods=METHODS[1:])[0]
    assert "reached an accuracy of 78.1 ± 0.1%" in first
    assert "what privacy cost cannot be said" in first


def test_a_gain_is_called_one(tmp_path: Path) -> None:
    accuracy = {"nonprivate": 0.7, "dpsgd": 0.75}
    assert "dpsgd gained 5.0" in said(tmp_path, methods=METHODS[:2], accuracy=accuracy)[0]


@pytest.mark.parametrize(
    ("tuned", "sentence"),
    [
        (
            0.836,
            "Of the 7.0 points that dpsgd (paper) lost, 80% was the learning rate, not privacy: "
            "dpsgd (tuned), at learning rate 2",
        ),
        (0.8501, "dpsgd (paper) lost, all was the learning rate, not privacy"),
        (0.75, "Other settings do not help"),
    ],
)
def test_what_other_settings_win_back_was_not_privacy(
    tmp_path: Path, tuned: float, sentence: str
) -> None:
    accuracy = {"nonprivate": 0.85, "dpsgd (paper)": 0.78, "dpsgd (tuned)": tuned}
    sentences = said(tmp_path, methods=TWO, accuracy=accuracy, baseline=None)
    assert sentence in sentences[1]


def test_settings_other_than_the_learning_rate_are_called_settings(tmp_path: Path) -> None:
    rows = [*TWO[:2], TWO[2] | {"settings": {"clip": 2.0}}]
    accuracy = {"nonprivate": 0.85, "dpsgd (paper)": 0.78, "dpsgd (tuned)": 0.84}
    sentences = said(tmp_path, methods=rows, accuracy=accuracy, baseline=None)
    assert "was its settings, not privacy" in sentences[1]


def test_the_same_method_on_another_network_is_not_another_setting(tmp_path: Path) -> None:
    linear = {"name": "dpsgd", "label": "linear", "settings": {"clip": 0.5}}
    rows = [*METHODS[:2], linear | {"model": {"name": "dutch-linear"}}]
    accuracy = {"nonprivate": 0.85, "dpsgd": 0.78, "linear": 0.84}
    assert not any("not privacy" in one for one in said(tmp_path, methods=rows, accuracy=accuracy))


def test_clippings_direction_error_is_named_where_it_dominates(tmp_path: Path) -> None:
    study = read(comparison(tmp_path / "c", kept={"dpsgd": 0.25}))
    found = diagnosis(study, "dpsgd")
    assert found is not None
    assert found.cause == "clipping direction"
    text = next(one for one in words(study) if one.startswith("Clipping in dpsgd"))
    assert "left 25% of the gradient's length" in text
    assert "turned it by 39 degrees (cosine 0.78); the bias is 0.78 times its length" in text
    assert "(norm 1.55)" in text
    assert "0.80 times what is left" in text
    assert "no learning rate mends it" in text


def test_a_gradient_turned_around_goes_uphill(tmp_path: Path) -> None:
    assert any("raised the loss" in one for one in said(tmp_path, kept={"dpsgd": -0.2}))


def test_nothing_is_said_of_clipping_that_was_not_measured(tmp_path: Path) -> None:
    study = read(comparison(tmp_path / "c", readings=False))
    assert diagnosis(study, "dpsgd") is None
    assert not any("lipping" in one for one in words(study))


def test_few_seeds_cannot_make_a_difference_significant(tmp_path: Path) -> None:
    text = next(one for one in said(tmp_path) if one.startswith("The most accurate"))
    assert "adapt: 83.1 ± 0.1%, 5.0 points above dpsgd" in text
    assert (
        "with 2 seeds no such difference can be significant (one comparison would take 5)" in text
    )


def test_enough_seeds_can(tmp_path: Path) -> None:
    text = next(one for one in said(tmp_path, seeds=range(6)) if one.startswith("The most"))
    assert "(p = 0.016, Wilcoxon's test over 6 seeds with Holm's correction)" in text


def test_a_baseline_that_nobody_beats_is_said_to_be_best(tmp_path: Path) -> None:
    sentences = said(tmp_path, accuracy={"nonprivate": 0.85, "dpsgd": 0.84, "adapt": 0.8})
    assert any(one.startswith("No other private method here is more accurate") for one in sentences)


def test_a_method_without_a_guarantee_is_not_the_reference(tmp_path: Path) -> None:
    study = read(comparison(tmp_path / "c", methods=METHODS[:1], baseline=None))
    assert reference(study) is best(study) is None
    assert words(study) == [
        "None of these methods has a privacy guarantee, so there is no cost of privacy here."
    ]


def test_the_reference_is_the_row_that_is_not_tuned(tmp_path: Path) -> None:
    study = read(comparison(tmp_path / "c", methods=TWO[::-1], baseline="dpsgd (tuned)"))
    assert reference(study) == "dpsgd (paper)"


def test_what_tuning_leaves_in_the_loss_is_told(tmp_path: Path) -> None:
    adapt = {"name": "global-adapt", "label": "adapt", "origin": "tuned"}
    accuracy = dict.fromkeys(("nonprivate", "dpsgd (tuned)", "adapt (tuned)"), 0.85)
    study = read(
        comparison(
            tmp_path / "c",
            methods=[*TWO, adapt],
            baseline=None,
            accuracy={**accuracy, "dpsgd (paper)": 0.78},
            added={"dpsgd (tuned)": 0.1, "adapt (tuned)": 0.01},
        )
    )
    said = " ".join(words(study))
    assert "What is left is in the loss: that of dpsgd (tuned) is 0.10 above" in said
    assert "adapt (tuned) is 0.01 above." in said


TUNED = [
    {"name": "nonprivate", "origin": "tuned"},
    {"name": "dpsgd", "settings": {"clip": 0.5}},
    {"name": "dpsgd", "settings": {"clip": 0.1}, "origin": "tuned"},
]


def test_the_news_is_what_privacy_costs_once_tuned(tmp_path: Path) -> None:
    shares = {"nonprivate (tuned)": 0.85, "dpsgd": 0.70, "dpsgd (tuned)": 0.83}
    first = said(tmp_path, methods=TUNED, accuracy=shares)[0]
    assert first.startswith("Tuned, privacy costs 2.0 points of accuracy. At epsilon 3.40")
    assert "dpsgd (tuned) lost 2.0" in first


def test_what_is_tuned_is_measured_against_what_is_tuned(tmp_path: Path) -> None:
    adapt = {"name": "global-adapt", "label": "adapt", "origin": "tuned"}
    shares = {"dpsgd": 0.70, "dpsgd (tuned)": 0.82, "adapt (tuned)": 0.83}
    sentences = said(tmp_path, methods=[*TUNED, adapt], accuracy=shares)
    text = next(one for one in sentences if one.startswith("The most accurate"))
    assert "1.0 points above dpsgd (tuned)" in text


def test_each_epsilon_is_told_with_what_it_reaches(tmp_path: Path) -> None:
    text = " ".join(said(tmp_path, epsilons=(1.0, 3.0)))
    assert "By accuracy, the best private model reaches 83.1% at epsilon 1 and" in text
    assert "; without privacy 85.1%" in text


def one_class_for_all(folder: Path, *, free: float, private: float, accuracy: float = 0.9) -> Study:
    """A comparison in which every method gives all records one class, with these AUCs."""
    comparison(folder, accuracy={"nonprivate": 0.9, "dpsgd": 0.9, "adapt": 0.9})
    for path in folder.glob("*/result.json"):
        stored = json.loads(path.read_text())
        auc = free if stored["method"] == "nonprivate" else private
        more = {"accuracy": accuracy, "baseline accuracy": 0.9, "auc": auc, "most predicted": 1.0}
        for values in (stored["report"]["overall"], *stored["report"]["by_group"].values()):
            values.update(more)
        path.write_text(json.dumps(stored))
    return read(folder)


def test_where_nothing_is_learned_that_is_the_news(tmp_path: Path) -> None:
    first = words(one_class_for_all(tmp_path / "c", free=0.53, private=0.52))[0]
    assert first == (
        "None of the methods beats the accuracy of one class for all (90.0%). So what privacy "
        "costs cannot be told here."
    )


def test_what_chance_may_put_above_the_baseline_does_not_clearly_beat_it(tmp_path: Path) -> None:
    found = words(one_class_for_all(tmp_path / "c", free=0.8, private=0.7, accuracy=0.901))
    assert "None of the methods clearly beats the accuracy of one class for all (90.0%)" in found[1]


def test_where_accuracy_does_not_tell_the_auc_does(tmp_path: Path) -> None:
    study = one_class_for_all(tmp_path / "c", free=0.8, private=0.7)
    free, private = tiles_of(study)[1:3]
    assert (free.value, free.beside) == ("0.800", "AUC, where 0.5 is guessing")
    assert (private.value, private.name) == ("0.700", "best private")
    found = words(study)
    assert found[0].startswith("Privacy costs 0.100 of AUC. At epsilon 3.40")
    assert "None of the methods beats the accuracy of one class for all (90.0%)" in found[1]
    assert "(AUC 0.700 to 0.800)" in found[1]
    assert "(--threshold auto)" in found[1]
    assert any("method here ranks records better than dpsgd (0.700" in one for one in found)
    assert not any("settings" in one for one in found)  # of which accuracy does not tell


def test_where_the_schema_was_found_the_free_row_has_it_too(tmp_path: Path) -> None:
    study = one_class_for_all(tmp_path / "c", free=0.8, private=0.7)
    told = "found privately, and every row learns from that, the one without privacy too"
    assert told not in " ".join(words(study))
    found = FoundPart.model_construct(run="schema-1", columns=("age",))
    data = study.recipe.data.model_copy(update={"found": found})
    recipe = study.recipe.model_copy(update={"data": data})
    assert told in " ".join(words(dataclasses.replace(study, recipe=recipe)))
