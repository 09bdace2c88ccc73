"""``plumbline predict``: the model of a run on a table, used on new rows."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline.record_random import Draws
from tests.cli.calling import Called, call_once, copy_here, people, small_recipe

TRAIN = [
    "train",
    "--data",
    "people.csv",
    "--target",
    "income",
    "--sensitive",
    "sex",
    "--out",
    "run",
]
TRAIN += ["--from-data", "--epochs", "5", "--batch", "80", "--seed", "0", "--epsilon", "8"]
TRAIN += ["--learning-rate", "0.02"]


def written(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    people(folder / "people.csv")
    call_once(folder, *TRAIN, "--drop", "hours")
    return folder


@pytest.fixture
def run(call: Called, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_here(trained, monkeypatch)
    (folder,) = (tmp_path / "run" / "people").iterdir()
    return folder


def held_out(path: Path) -> list[str]:
    """The rows that a run without --test is judged on, by the data's own split."""
    header, *lines = path.read_text().splitlines()
    held = Draws(torch.arange(len(lines)), "test rows, seed 0").uniform() < 0.2
    return [header, *(line for line, out in zip(lines, held.tolist(), strict=True) if out)]


@pytest.mark.parametrize("second", [False, True], ids=["held-out", "second-file"])
def test_on_the_rows_that_the_run_was_judged_on_the_accuracy_is_its_own(
    call: Called, tmp_path: Path, second: bool
) -> None:
    table, later = people(tmp_path / "people.csv"), tmp_path / "later.csv"
    if second:
        lines = table.read_text().splitlines()
        later.write_text("\n".join([lines[0], *lines[300:], "200,Cairo,f,30,high"]) + "\n")
        table.write_text("\n".join(lines[:300]) + "\n")
    else:
        later.write_text("\n".join(held_out(table)) + "\n")
    assert call(*TRAIN, "--json", *(["--test", "later.csv"] if second else [])) == 0
    report = call.json["report"]
    assert call("predict", "run/people", "--data", "later.csv", "--out", "said.csv") == 0
    rows = written("said.csv")
    right = [row["prediction"] == row["income"] for row in rows]
    assert len(right) == sum(report["sizes"].values())
    assert sum(right) / len(right) == pytest.approx(report["overall"]["accuracy"], abs=1e-12)
    for group in "fm":
        ours = [row["prediction"] == row["income"] for row in rows if row["sex"] == group]
        stated = report["by_group"][group]["accuracy"]
        assert sum(ours) / len(ours) == pytest.approx(stated, abs=1e-12)


def test_new_rows(call: Called, run: Path, tmp_path: Path) -> None:
    # Other order, a further column, and neither the target nor the column that was dropped.
    (tmp_path / "new.csv").write_text("note,sex,city,age\nold,f,Oslo,80\nyoung,m,Lima,18\n")
    assert call("predict", "run/people", "--data", "new.csv") == 0
    assert "2 rows, with the probability of each class, are in predictions.csv." in call.out
    old, young = written("predictions.csv")
    names = ["note", "sex", "city", "age", "prediction", "probability_high", "probability_low"]
    assert list(old) == names
    assert (old["note"], old["age"]) == ("old", "80")
    assert (old["prediction"], young["prediction"]) == ("high", "low")
    for row in (old, young):
        chances = {name: float(row[f"probability_{name}"]) for name in ("high", "low")}
        assert sum(chances.values()) == pytest.approx(1, abs=2e-6)
        assert row["prediction"] == max(chances, key=chances.__getitem__)
    assert not call.err
    assert not Path("predictions.csv.tmp").exists()


def test_what_no_training_row_had_is_said(call: Called, run: Path, tmp_path: Path) -> None:
    rows = "sex,city,age\nf,Cairo,200\nf,Oslo,-5\nf,Oslo,40\n"
    (tmp_path / "new.csv").write_text(rows)
    assert call("predict", "run/people", "--data", "new.csv", "--out", "a.csv") == 0
    assert (
        "city: 1 row has a category that the model does not know; it counts as another." in call.err
    )
    assert "age: 2 rows have a number outside 18 to 80; it is" in call.err
    assert call("predict", "run/people", "--data", "new.csv", "--json") == 0
    assert set(call.json["unseen"]) == {"city", "age"}
    assert call.json["rows"] == sum(call.json["predicted"].values()) == 3
    (tmp_path / "new.csv").write_text(rows.replace("200", "80").replace("-5", "18"))
    assert call("predict", "run/people", "--data", "new.csv", "--out", "b.csv") == 0
    chances = [[row["probability_low"] for row in written(name)] for name in ("a.csv", "b.csv")]
    assert chances[0] == chances[1]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("sex,age\nf,3\n", [], "has no column 'city', which the model was trained on"),
        ("age\n3\n", [], "has no column 'city', 'sex'"),
        (
            "sex,city,age\nf,Oslo,\n",
            ["--missing", "error"],
            "'age' has no value, or none of its kind, in row 1 of new.csv. Fill such cells",
        ),
        ("sex,city,age\nf,,3\n", ["--missing", "error"], "(--missing blank)."),
        (
            "sex,city,age\nf,Oslo,old\n",
            ["--missing", "error"],
            "'age' has no value, or none of its kind, in row 1 of new.csv",
        ),
        ("sex,city,age\nf,Oslo,3\n", ["--decimal", "x"], "it must be '.' or ','"),
        ("sex,city,age\nf,Oslo,3\n", ["--encoding", "klingon"], "no encoding called 'klingon'"),
        ("sex,city,age,prediction\nf,Oslo,3,low\n", [], "has a column 'prediction' already"),
        ("sex,city,age\nf,Oslo,3\n", ["--out", "new.csv"], "the data itself"),
        ("", [], "has no rows"),
        (None, [], "There is no file new.csv"),
    ],
)
def test_rows_that_cannot_be_used(
    call: Called, run: Path, tmp_path: Path, rows: str | None, options: list[str], message: str
) -> None:
    if rows is not None:
        (tmp_path / "new.csv").write_text(rows)
    assert call("predict", "run/people", "--data", "new.csv", *options) == 2
    assert message in call.err
    assert "categorical=" not in call.err
    assert not Path("predictions.csv").exists()
    assert not Path("predictions.csv.tmp").exists()
    assert rows is None or (tmp_path / "new.csv").read_text() == rows


def test_there_is_a_row_for_every_row(call: Called, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("sex,city,age,note\nf,,3,a\nf,Oslo,3,b\nf,Oslo,,c\n")
    assert call("predict", "run/people", "--data", "new.csv") == 0
    assert "city: 1 row has no value, or none of its kind; it is filled." in call.err
    rows = written("predictions.csv")
    assert [row["note"] for row in rows] == ["a", "b", "c"]
    assert all(row["prediction"] in ("high", "low") for row in rows)
    assert call("predict", "run/people", "--data", "new.csv", "--missing", "blank", "--json") == 0
    assert (call.json["rows"], call.json["blank"]) == (3, 2)
    assert call.json["missing"] == {"city": 1, "age": 1}
    blank = written("predictions.csv")
    assert [row["note"] for row in blank] == ["a", "b", "c"]
    assert [row["prediction"] for row in blank] == ["", rows[1]["prediction"], ""]


def test_a_file_of_another_form(call: Called, run: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("sex,city,age\nf,Zürich,40.5\nm,Oslo,1234\n")
    assert call("predict", "run/people", "--data", "plain.csv", "--out", "a.csv") == 0
    (tmp_path / "new.csv").write_bytes(
        "sex;city;age\nf;Zürich;40,5\nm;Oslo;1.234\n".encode("cp1252")
    )
    form = ["--encoding", "cp1252", "--decimal", ","]
    assert call("predict", "run/people", "--data", "new.csv", "--out", "b.csv") == 2
    assert "it looks like latin-1" in call.err
    assert call("predict", "run/people", "--data", "new.csv", "--out", "b.csv", *form) == 0
    assert written("a.csv") == written("b.csv")


def without(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).unlink()


def changed(**values: Any) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        path = run / "encoding.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


@pytest.mark.parametrize(
    ("damage", "code", "message"),
    [
        (without("result.json"), 1, "is not finished: it has no result.json"),
        (without("encoding.json"), 2, " has no encoding.json"),
        (without("model.pt"), 1, "has no model.pt"),
        (lambda run: (run / "model.pt").write_bytes(b"PK"), 1, "model.pt does not load"),
        (changed(classes=["high"]), 1, "has 11 features and 1 classes, and the network 11 and 2"),
        (changed(columns=[3]), 1, "encoding.json is damaged"),
    ],
)
def test_folders_that_cannot_be_used(
    call: Called, run: Path, damage: Callable[[Path], object], code: int, message: str
) -> None:
    damage(run)
    assert call("predict", "run/people", "--data", "people.csv") == code
    assert message in call.err
    assert "Traceback" not in call.err


def test_a_file_that_cannot_be_written(call: Called, run: Path) -> None:
    assert call("predict", "run/people", "--data", "people.csv", "--out", "none/said.csv") == 1
    assert "Cannot write none/said.csv: No such file" in call.err


def test_the_run_of_a_recipe_has_no_table(call: Called, tmp_path: Path) -> None:
    people(tmp_path / "people.csv")
    assert call("train", small_recipe(tmp_path), "--method", "dpsgd", "--json") == 0
    assert call("predict", call.json["folder"], "--data", "people.csv") == 2
    assert "the run was not made on a table" in call.err


def test_an_encoding_that_was_changed_is_found(call: Called, run: Path) -> None:
    assert call("verify", "run/people") == 0
    changed(missing_values=["?"])(run)
    assert call("verify", "run/people") == 1
    assert "encoding.json was changed" in " ".join(call.out.split())
