"""Every verdict, on small tables and on the papers' own numbers."""

from typing import Any

import pytest

from plumbline.experiments.paper_verdicts import PaperVerdict, claim_verdict
from plumbline.experiments.papers import PaperClaim, names, read
from plumbline.experiments.studies import Measured, Measurements
from tests.experiments.small_paper import CLAIM, HOLDS, NEAR, NEAR_NEW, ROWS


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


@pytest.mark.parametrize(
    ("paper", "tuned", "verdict"),
    [
        pytest.param(HOLDS, {}, PaperVerdict.REPRODUCED, id="holds"),
        pytest.param(HOLDS, HOLDS, PaperVerdict.REPRODUCED, id="holds when tuned too"),
        pytest.param(HOLDS, {"new / loss": 2.0}, PaperVerdict.REPRODUCED, id="not all was tuned"),
        pytest.param(HOLDS, HOLDS | {"base / accuracy": 79.0}, PaperVerdict.TUNING, id="tuning"),
        pytest.param(
            HOLDS | {"base / accuracy": 79.0}, {}, PaperVerdict.DIRECTION, id="less above"
        ),
        pytest.param(HOLDS | {"base / loss": 0.4}, {}, PaperVerdict.DIRECTION, id="less often"),
        pytest.param(
            HOLDS | {"base / loss": 0.4},
            HOLDS | {"base / loss": 0.2},
            PaperVerdict.TUNING,
            id="both",
        ),
        pytest.param(HOLDS | {"base / accuracy": 81.0}, {}, PaperVerdict.NOT, id="does not hold"),
        pytest.param(
            HOLDS | {"base / loss": 0.2}, HOLDS, PaperVerdict.NOT, id="holds when tuned only"
        ),
        pytest.param(HOLDS | {"new / loss": 1.5}, {}, PaperVerdict.NOT, id="above a number"),
        pytest.param({"new / accuracy": 80.0}, {}, PaperVerdict.MISSING, id="missing"),
        pytest.param(
            HOLDS | {"new / loss": float("nan")}, HOLDS, PaperVerdict.MISSING, id="undefined"
        ),
    ],
)
def test_verdicts_of_claims(
    judged: Any, paper: dict[str, float], tuned: dict[str, float], verdict: PaperVerdict
) -> None:
    (claim,) = judged(CLAIM, paper, tuned).claims
    assert (claim.what, claim.verdict) == ("new beats base", verdict)


def test_comparable_means_not_much_below(judged: Any) -> None:
    claims = """
[[claims]]
says = "no worse by more than one"
above = [["a / loss", "b / loss", -1.0]]
"""
    for other, verdict in ((2.9, PaperVerdict.REPRODUCED), (3.1, PaperVerdict.NOT)):
        (claim,) = judged(claims, {"a / loss": 2.0, "b / loss": other}).claims
        assert claim.verdict is verdict


def test_a_claim_about_differences(judged: Any) -> None:
    claims = """
[[claims]]
says = "a's gap is larger"
above = [["a / x minus a / y", "b / x minus b / y", 1.0]]
"""
    values = {"a / x": 5.0, "a / y": 2.0, "b / x": 4.0, "b / y": 2.5}
    (claim,) = judged(claims, values).claims
    assert claim.verdict is PaperVerdict.REPRODUCED
    assert PaperClaim(says="", above=(("a / x minus a / y", 1.0, 0.0),)).keys == ("a / x", "a / y")


@pytest.mark.parametrize("name", [one for one in names() if one.startswith("004-table")])
def test_every_claim_of_paper_004s_tables_holds_of_its_own_numbers(name: str) -> None:
    """At the full threshold; but for the one claim of the text that Table 5 contradicts."""
    _, published = read(name)
    own = {
        f"{row.row} / {metric}": Measured(value)
        for row in published.rows
        for metric, value in row.values.items()
    }
    for claim in published.claims:
        verdict = claim_verdict(claim, Measurements(own))
        if name == "004-table-5" and claim.says.startswith(
            "DPSGD-Global-Adapt improves on DPSGD-F in loss"
        ):
            assert verdict is PaperVerdict.NOT
        elif "error at" in "".join(claim.keys):  # rows of our own
            assert verdict is PaperVerdict.MISSING
        else:
            assert verdict is PaperVerdict.REPRODUCED, claim.says
