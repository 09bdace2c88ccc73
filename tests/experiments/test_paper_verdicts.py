"""Every verdict, on small tables and on the papers' own numbers."""

from dataclasses import replace
from typing import Any

import pytest

from plumbline.experiments.paper_verdicts import PaperVerdict, claim_outcome
from plumbline.experiments.papers import PaperClaim, names, read
from plumbline.experiments.studies import Measured, Measurements
from tests.experiments.small_paper import CLAIM, HOLDS, NEAR, NEAR_NEW, PLAN, ROWS


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        pytest.param(
            {"new / accuracy / a": 79.0, "new / loss": 0.5}, PaperVerdict.REPRODUCED, id="near"
        ),
        pytest.param(
            {"new / accuracy / a": 75.0, "new / loss": 0.6}, PaperVerdict.DIRECTION, id="side"
        ),
        pytest.param(
            {"new / accuracy / a": 69.0, "new / loss": 0.4}, PaperVerdict.NOT, id="other side"
        ),
        pytest.param(
            {"new / accuracy / a": 78.99, "new / loss": 0.4}, PaperVerdict.UNDECIDED, id="chance"
        ),
        pytest.param({"new / accuracy / a": 80.0}, PaperVerdict.MISSING, id="one is missing"),
        pytest.param(
            {"new / accuracy / a": 80.0, "new / loss": float("nan")},
            PaperVerdict.MISSING,
            id="undefined",
        ),
    ],
)
def test_verdicts_of_rows(judged: Any, ours: dict[str, float], verdict: PaperVerdict) -> None:
    found = judged(ROWS, NEAR | ours)
    assert found.rows == {"base": PaperVerdict.REPRODUCED, "new": verdict}


def test_a_reference_row_that_is_far_has_no_direction(judged: Any) -> None:
    found = judged(ROWS, {"base / accuracy / a": 60.0, "base / loss": 0.8, **NEAR_NEW})
    assert found.rows == {"base": PaperVerdict.NOT, "new": PaperVerdict.REPRODUCED}


def test_without_the_reference_there_is_no_direction(judged: Any) -> None:
    found = judged(ROWS, {"new / accuracy / a": 75.0, "new / loss": 0.4})
    assert found.rows == {"base": PaperVerdict.MISSING, "new": PaperVerdict.NOT}


def test_what_was_published_as_equal_has_no_direction(judged: Any) -> None:
    """Within the tolerance of the reference: no side to be on, and no verdict against the row."""
    rows = ROWS.replace("loss = 0.4", "loss = 0.85")
    found = judged(rows, NEAR | {"new / accuracy / a": 75.0, "new / loss": 0.6})
    assert found.rows["new"] is PaperVerdict.DIRECTION


GONE = HOLDS | {"base / accuracy": 79.0, "base / loss": 0.32}


@pytest.mark.parametrize(
    ("paper", "tuned", "verdict"),
    [
        pytest.param(HOLDS, {}, PaperVerdict.REPRODUCED, id="holds"),
        pytest.param(HOLDS, HOLDS, PaperVerdict.REPRODUCED, id="holds when tuned too"),
        pytest.param(HOLDS, {"new / loss": 2.0}, PaperVerdict.REPRODUCED, id="not all was tuned"),
        pytest.param(
            HOLDS | {"base / accuracy": 79.0}, {}, PaperVerdict.DIRECTION, id="less above"
        ),
        pytest.param(HOLDS | {"base / loss": 0.4}, {}, PaperVerdict.DIRECTION, id="less often"),
        pytest.param(HOLDS | {"base / loss": 0.6}, {}, PaperVerdict.DIRECTION, id="twice, or not"),
        pytest.param(
            HOLDS | {"base / accuracy": 80.01}, {}, PaperVerdict.CONTRADICTED, id="no difference"
        ),
        pytest.param(
            HOLDS | {"base / accuracy": 81.0}, HOLDS, PaperVerdict.CONTRADICTED, id="tuned only"
        ),
        pytest.param(
            HOLDS | {"new / loss": 1.5}, {}, PaperVerdict.CONTRADICTED, id="above a number"
        ),
        pytest.param({"new / accuracy": 80.0}, {}, PaperVerdict.MISSING, id="missing"),
        pytest.param(
            HOLDS | {"new / loss": float("nan")}, HOLDS, PaperVerdict.MISSING, id="undefined"
        ),
        pytest.param(
            HOLDS | {"new / loss": -0.3}, {}, PaperVerdict.UNDEFINED, id="a ratio to a negative"
        ),
    ],
)
def test_verdicts_of_claims(
    judged: Any, paper: dict[str, float], tuned: dict[str, float], verdict: PaperVerdict
) -> None:
    assert judged(CLAIM, paper, tuned).claims["new beats base"].verdict is verdict


ACCURACY = '[[claims]]\nsays = "more"\nabove = [["new / accuracy", "base / accuracy", 5.0]]\n'


def test_tuning_explains_a_difference_that_is_gone(judged: Any) -> None:
    """Its interval must exclude half of the published difference; a missed margin is not enough."""
    assert judged(ACCURACY, HOLDS, GONE).claims["more"].verdict is PaperVerdict.TUNING
    less = HOLDS | {"base / accuracy": 75.01}  # 4.99 of 5, and the interval reaches above 5
    assert judged(ACCURACY, HOLDS, less).claims["more"].verdict is PaperVerdict.REPRODUCED


def test_tuning_explains_only_what_it_aimed_at(judged: Any) -> None:
    claims = """
[[claims]]
says = "more of both"
above = [["new / accuracy", "base / accuracy", 5.0], ["base / loss", "new / loss", 0.25]]
"""
    found = judged(claims, HOLDS, GONE).claims["more of both"]
    assert found.verdict is PaperVerdict.REPRODUCED
    assert found.remark == "tuning explains 1 of 2 parts"
    assert [one.explained for one in found.parts] == [True, False]
    for_loss = judged(claims, HOLDS, GONE, aim="loss").claims["more of both"]
    assert [one.explained for one in for_loss.parts] == [False, True]


def test_one_part_that_fails_is_counted(judged: Any) -> None:
    found = judged(CLAIM, HOLDS | {"base / accuracy": 81.0}).claims["new beats base"]
    assert (found.verdict, found.remark) == (PaperVerdict.CONTRADICTED, "in 1 of 3 parts")
    assert found.deciding.part.text == "new / accuracy less base / accuracy"


@pytest.mark.parametrize("size", ["quick", "answer"])
def test_a_smaller_size_judges_claims_only_for_a_reason(judged: Any, size: Any) -> None:
    plan = PLAN.replace("minutes = {", "minutes = { answer = 0.1,")
    reason = '\n[answers]\nanswer = "It has the paper\'s steps."\n'
    found = judged(ROWS + CLAIM, {**HOLDS, **NEAR, **NEAR_NEW}, size=size, plan=plan + reason)
    assert set(found.rows.values()) == {PaperVerdict.NOT_JUDGED}
    assert {value.verdict for value in found.values} == {PaperVerdict.NOT_JUDGED}
    claim = found.claims["new beats base"].verdict
    assert (claim is PaperVerdict.NOT_JUDGED) == (size == "quick")


def test_comparable_means_not_much_below(judged: Any) -> None:
    claims = '[[claims]]\nsays = "no worse by more than one"\nabove = [["a / x", "b / x", -1.0]]\n'
    for other, verdict in (
        (2.9, PaperVerdict.REPRODUCED),
        (3.1, PaperVerdict.CONTRADICTED),
    ):
        found = judged(claims, {"a / x": 2.0, "b / x": other}).claims
        assert found["no worse by more than one"].verdict is verdict


def test_a_claim_about_differences(judged: Any) -> None:
    claims = """
[[claims]]
says = "a's gap is larger"
above = [["a / x minus a / y", "b / x minus b / y", 1.0]]
"""
    values = {"a / x": 5.0, "a / y": 2.0, "b / x": 4.0, "b / y": 2.5}
    assert judged(claims, values).claims["a's gap is larger"].verdict is PaperVerdict.REPRODUCED
    assert PaperClaim(says="", above=(("a / x minus a / y", 1.0, 0.0),)).keys == ("a / x", "a / y")


@pytest.mark.parametrize("name", [one for one in names() if one.startswith("004-table")])
def test_every_claim_of_paper_004s_tables_holds_of_its_own_numbers(name: str) -> None:
    """At the full threshold; but for the one claim of the text that Table 5 contradicts."""
    _, published = read(name)
    own = {
        f"{row.row} / {metric}": replace(Measured(value), bounds=(value, value))
        for row in published.rows
        for metric, value in row.values.items()
    }
    for claim in published.claims:
        verdict = claim_outcome(claim, Measurements(own)).verdict
        if name == "004-table-5" and claim.says.startswith(
            "DPSGD-Global-Adapt improves on DPSGD-F in loss"
        ):
            assert verdict is PaperVerdict.CONTRADICTED
        elif "error at" in "".join(claim.keys):  # rows of our own
            assert verdict is PaperVerdict.MISSING
        else:
            assert verdict is PaperVerdict.REPRODUCED, claim.says
