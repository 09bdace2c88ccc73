"""What the command line prints about bad tables has nothing of their cells in it."""

from pathlib import Path

import pytest

from tests.cli.calling import Called, people

WORD, NUMBER = "SECRET-7731", "987654321"
TRAIN = ["train", "--data", "people.csv", "--target", "income", "--out", "run", "--epsilon", "8"]
TRAIN += ["--epochs", "1", "--seed", "0", "--sensitive", "sex"]
DECLARED = ["--categories", "income=high,low", "--categories", "sex=f,m", "--records", "320"]


def spoilt(tmp_path: Path, cells: str) -> None:
    """The table, with these cells in row 7."""
    path = people(tmp_path / "people.csv")
    lines = path.read_text().splitlines()
    lines[7] = cells
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "options", [DECLARED, ["--from-data"], []], ids=["declared", "taken", "found"]
)
@pytest.mark.parametrize(
    "cells",
    [
        f"{WORD},Oslo,f,20,low",
        f"{NUMBER}e999,Oslo,f,20,low",
        f"20,{WORD},f,20",
        f"20,{WORD},f,20,low,{NUMBER}",
        f"{NUMBER},{WORD},,20,low",
        f"20,Oslo,f,{WORD},low",
    ],
    ids=["text", "infinite", "short", "long", "missing", "word"],
)
def test_a_bad_row(call: Called, tmp_path: Path, cells: str, options: list[str]) -> None:
    spoilt(tmp_path, cells)
    code = call(*TRAIN, *options)
    assert code in (0, 1, 2)  # 1 for a damaged file
    assert (code > 0) == call.err.startswith("plumbline: ")
    for secret in (WORD, NUMBER):
        assert secret not in call.out + call.err
    if code and options:  # what is found privately is paid before it is known
        assert not list(tmp_path.glob("run/**/ledger*"))  # nothing was charged


def test_new_rows(call: Called, tmp_path: Path) -> None:
    people(tmp_path / "people.csv")
    assert call(*TRAIN, *DECLARED) == 0
    (folder,) = (tmp_path / "run" / "people").glob("*/result.json")
    folder = folder.parent
    new = tmp_path / "new.csv"
    for cells in (f"{NUMBER},{WORD},f,20", f"{WORD},Oslo,f,20", f"20,Oslo,{WORD},20"):
        new.write_text(f"age,city,sex,hours\n{cells}\n")
        call("predict", folder, "--data", "new.csv", "--out", "out.csv")
        assert call.out + call.err
        for secret in (WORD, NUMBER):
            assert secret not in call.out + call.err


def test_names_that_look_like_markup_are_text(call: Called, tmp_path: Path) -> None:
    """An error about them would name a class, after everything was charged."""
    path = people(tmp_path / "people.csv")
    text = path.read_text().replace("low", "[/low]").replace(",f,", ",[bold]f,")
    path.write_text(text.replace("city", "[/]"))
    assert call(*TRAIN, "--from-data", "--no-page") == 0
    # What a crash can cost comes before the first step.
    assert call.err.index("A crash costs no step") < call.err.index("0 of 1 runs are done")
    assert "[/low]" in call.out
    assert "[bold]f" in call.out
    (result,) = (tmp_path / "run" / "people").glob("*/result.json")
    assert call("predict", result.parent, "--data", "people.csv", "--out", "out.csv") == 0
    assert "[/low]" in call.out + call.err
