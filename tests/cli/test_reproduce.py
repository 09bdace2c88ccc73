"""``plumbline reproduce``: what is listed, what is made, and wrong uses."""

from pathlib import Path

import pytest

from plumbline.experiments.papers import names
from tests.cli.calling import Called


def test_what_can_be_reproduced_is_listed(call: Called) -> None:
    assert call("reproduce", "--list", "--json") == 0
    assert [row["name"] for row in call.json] == names()
    assert call("reproduce", "--list") == 0
    assert all(name in call.out for name in names())


def test_one_is_made_judged_and_kept(call: Called, tmp_path: Path) -> None:
    assert call("reproduce", "002-table-4", "--size", "paper", "--out", tmp_path) == 0
    assert "DP-SAM takes 1.6 to 2.1 times as long as DP-SGD | reproduced" in call.out
    assert (tmp_path / "002-table-4-paper" / "reproduction.json").is_file()
    assert call("reproduce", "002-table-4", "--out", tmp_path, "--json") == 0
    verdicts = {claim["verdict"] for claim in call.json["claims"].values()}
    assert verdicts == {"not judged at this size"}


@pytest.mark.parametrize(
    "wrong",
    [("--all",), ("--hours", "1"), ("002-table-4", "--all", "--hours", "1")],
    ids=" ".join,
)
def test_all_and_hours_belong_together(call: Called, wrong: tuple[str, ...]) -> None:
    assert call("reproduce", *wrong) == 2
    assert "--all and --hours belong together" in call.err


def test_nothing_fits_into_no_time(call: Called, tmp_path: Path) -> None:
    assert call("reproduce", "--all", "--hours", "0", "--out", tmp_path) == 0
    assert "Nothing of the size 'quick' fits into 0 hours" in call.out + call.err
    assert not list(tmp_path.iterdir())


def test_a_size_that_is_not_there_is_refused(call: Called, tmp_path: Path) -> None:
    assert call("reproduce", "002-table-4", "--size", "answer", "--out", tmp_path) == 2
    assert "002-table-4 has no size 'answer'; it has quick, paper." in call.err
