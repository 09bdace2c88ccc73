"""The bugs that ``make mutants`` plants still apply, and its page in the docs is of these."""

import ast
import functools
import re
from dataclasses import replace

import pytest

from tests.mutants.__main__ import PAGE, Outcome, _judged, main, on_page, page
from tests.mutants.base import ROOT, SOURCE, Mutant, NoLongerApplies
from tests.mutants.catalogue import MUTANTS
from tests.mutants.forked import Ran


def source_of(mutant: Mutant) -> str:
    return (SOURCE / "plumbline" / mutant.file).read_text(encoding="utf-8")


@functools.cache
def parsed(file: str) -> str:
    return ast.dump(ast.parse((SOURCE / "plumbline" / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_still_applies(mutant: Mutant) -> None:
    assert ast.dump(ast.parse(mutant.planted(source_of(mutant)))) != parsed(mutant.file)
    for node in mutant.nodes:
        path, _, test = node.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        for part in test.partition("[")[0].split("::") if test else []:
            assert re.search(rf"^\s*(def|class) {part}\b", text, re.MULTILINE), node


def test_there_are_enough_of_them_each_with_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_the_page_has_exactly_these() -> None:
    """As ``make mutants`` writes it, whichever of a bug's tests was the first to fail."""
    text = PAGE.read_text(encoding="utf-8")
    caught = on_page(text)
    assert list(caught) == [mutant.name for mutant in MUTANTS]
    assert page(caught) == text
    for mutant in MUTANTS:
        test = caught[mutant.name]
        assert any(test.startswith(node.partition("[")[0]) for node in mutant.nodes), mutant.name


def test_a_text_that_is_not_there_once_is_said() -> None:
    mutant = Mutant("a bug", "all", "sampling.py", "import", "export", ())
    with pytest.raises(NoLongerApplies, match=r"a bug: the text .* in plumbline/sampling\.py"):
        mutant.planted(source_of(mutant))
    with pytest.raises(NoLongerApplies, match="0 times"):
        replace(mutant, old="what was here").planted(source_of(mutant))
    with pytest.raises(NoLongerApplies, match="the same text"):
        replace(mutant, new="import")


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (0, "5 passed", "alive"),
        (1, "FAILED tests/a.py::test_b[x - y] - assert 1 == 2\n1 failed", "caught"),
        (1, "ERROR tests/a.py::test_b - ImportError", "error"),
        (1, "FAILED tests/a.py::test_b - NameError: name 'torch' is not defined", "error"),
        (2, "FAILED tests/a.py::test_b\nInterrupted", "error"),
        (None, "FAILED tests/a.py::test_b", "error"),
    ],
)
def test_only_a_test_that_fails_catches_a_bug(
    status: int | None, output: str, verdict: str
) -> None:
    outcome = _judged(Ran(status, output, 1.0))
    assert outcome.verdict == verdict
    if verdict == "caught":
        assert outcome == Outcome("caught", "tests/a.py::test_b")


def test_the_list_and_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        mutant.name for mutant in MUTANTS
    ]
    assert main(["--only", "no such bug"]) == 2
    assert "no such bug" in capsys.readouterr().err
