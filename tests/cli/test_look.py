"""A table with every kind of column, from the first look to predictions on new rows."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import plumbline as pl
from plumbline.data import read_encoding
from plumbline.experiments import Recipe
from tests.cli.calling import Called
from tests.data.clinic import NAMES, OPTIONS, clinic, records

RUN = ["train", "--data", "clinic.csv", "--target", "died", "--sensitive", "sex"]
QUICK = ["--epochs", "0.2", "--seed", "0"]
TAKEN = ["--from-data", *QUICK]


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Path:
    return clinic(tmp_path / "clinic.csv", 2500)


def result(folder: str = "runs") -> dict[str, Any]:
    (path,) = Path(folder, "clinic").glob("*/result.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return {**found, "run": path.parent}


def nothing_charged(tmp_path: Path) -> bool:
    return not list(tmp_path.rglob("*ledger*"))


def test_the_command_that_a_look_proposes_runs(call: Called, tmp_path: Path) -> None:
    assert call("data", "look", "clinic.csv", "--target", "died", "--sensitive", "sex") == 0
    assert "it is for your eyes, and not for release" in call.out
    assert "is found privately, at epsilon 3 if some" in call.out
    assert "too small" not in call.out
    command = shlex.split(call.out.strip().splitlines()[-1])
    assert command[:2] == ["plumbline", "train"]
    assert nothing_charged(tmp_path)
    assert call(*command[1:], *QUICK, "--epsilon", "8") == 0
    assert "Found privately about the table: about " in call.err
    assert "admitted from 2018-01-01 to 2023-01-01" in call.err
    assert "Missing cells are filled, and a feature of each column says where" in call.err
    encoding = read_encoding(result()["run"] / "encoding.json")
    assert encoding.not_covered == ()
    assert [one.kind for one in encoding.columns] == [
        "date", "number", "number", "category", "category", "hash", "text", "category",
    ]  # fmt: skip
    statement = " ".join(result()["statement"].split())
    assert "the hashing of diagnosis; the hashing of the words of notes" in statement
    assert call("verify", result()["run"], "--data") == 0


def test_the_look_for_machines(call: Called) -> None:
    assert call("data", "look", "clinic.csv", "--drop", "patient,site", "--json") == 0
    found = call.json
    assert [one["name"] for one in found["columns"]] == [
        name for name in NAMES if name not in ("patient", "site")
    ]
    assert found["rows"] == 2500
    assert found["columns"][0]["options"] == [["--date", "admitted=dmy"]]
    assert "--target COLUMN" in found["command"]
    assert call("data", "look", "clinic.csv", "--target", "dead") == 2
    assert "Did you mean 'died'" in call.err


def test_a_look_tells_what_a_run_would_stop_over_when_it_is_paid_for(call: Called) -> None:
    """Of a hundred classes none has the rows to be found, though all rows together are enough.

    With noise that is drawn anew: each is five standard deviations away from being found.
    """
    rows = [f"{place % 97},{'ab'[place % 2]},s{place * 7 % 100}" for place in range(2000)]
    Path("species.csv").write_text("\n".join(["size,side,species", *rows]) + "\n")
    assert call("data", "look", "species.csv", "--target", "species") == 0
    said = " ".join(call.out.split())
    assert "s35 1.0 %, s42 1.0 %, s49 1.0 %, or one of 92 others." in said
    assert "No value of species has so many: declare them, or the run stops once that" in said
    assert "To go on, with the table's own values for A,B:" in said
    assert said.endswith("--target species --categories species=A,B")
    train = ["train", "--data", "species.csv", "--target", "species"]
    assert call(*train) == 2
    assert "a twentieth of epsilon, which is spent" in call.err
    assert call("data", "look", "species.csv", "--target", "side") == 0
    assert "No value of species has so many: declare them, or the run goes on" in call.out
    assert call.out.strip().endswith("plumbline train --data species.csv --target side")
    dropping = ["--drop", "size", "--missing-value", "NA"]
    assert call("data", "look", "species.csv", "--target", "side", *dropping) == 0
    assert call.out.strip().endswith(
        "--target side --missing-value NA --drop size --categories species=A,B"
    )


def test_without_options_what_is_no_category_is_left_out_and_that_is_said(call: Called) -> None:
    assert call(*RUN, *QUICK, "--epsilon", "8", "--categories", "died=no,yes") == 0
    for name in ("patient", "admitted", "diagnosis", "notes"):
        assert name in call.err.partition("nothing was found of them: ")[2].partition(". ")[0]
    assert "--date, --hash and --text (`plumbline data look` shows" in call.err


def test_all_obstacles_are_one_error_and_nothing_is_charged(call: Called, tmp_path: Path) -> None:
    for command in (RUN, ["compare", *RUN[1:], "--seeds", "1"]):
        assert call(*command, "--from-data") == 2
        listed = [line for line in call.err.splitlines() if line.startswith("- ")]
        assert [line[2:].split(":")[0] for line in listed] == [
            "patient", "admitted", "age", "diagnosis", "notes", "site",
        ]  # fmt: skip
        assert "Add to the command: --date admitted=dmy" in call.err
        assert call.err.count("plumbline: ") == 1
        assert nothing_charged(tmp_path)
    assert call(*RUN, "--from-data", "--separator", ",", "--date", "admitted=dmy") == 2
    added = call.err.partition("Add to the command: ")[2].split()
    assert "--hash" in added
    assert not {"--separator", "--date", "--categories"} & {*added}  # given, or not in the way


def test_dropped_rows_are_counted_and_said(call: Called) -> None:
    assert call(*RUN, *OPTIONS, *TAKEN, "--missing", "drop") == 0
    line = next(line for line in call.err.splitlines() if "are left out" in line)
    whole = [row for row in records(2500) if not {"", "NA"} & set(row)]
    assert line.startswith(f"{2500 - len(whole):,} of 2,500 rows (")
    lacking = sum(row[NAMES.index("weight")] == "" for row in records(2500))
    assert f"no value of weight in {lacking:,}" in line
    found = result()
    assert found["rows"]["left_out"] / found["rows"]["test_rows"] == pytest.approx(0.37, abs=0.05)
    sizes = sum(found["report"]["sizes"].values())
    assert sizes == found["rows"]["test_rows"] - found["rows"]["left_out"]
    assert str(2500 - len(whole)) not in json.dumps(found["rows"])  # of the test rows alone


def test_every_new_row_has_a_prediction(call: Called, tmp_path: Path) -> None:
    assert call(*RUN, *OPTIONS, *TAKEN) == 0
    assert result()["rows"]["left_out"] == 0
    clinic(tmp_path / "new.csv", 300, seed=1)
    assert call("predict", result()["run"], "--data", "new.csv") == 0
    assert "weight: " in call.err
    with Path("predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 300
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
    assert [row["patient"] for row in rows] == [row[0] for row in records(300, seed=1)]


def test_python_and_a_recipe_say_the_same(call: Called, tmp_path: Path) -> None:
    assert call(*RUN, *OPTIONS, *TAKEN, "--model", "mlp=16,8", "--fill", "weight=70") == 0
    found = pl.train(
        data="clinic.csv",
        target="died",
        sensitive="sex",
        dates={"admitted": "dmy"},
        hashes={"diagnosis": 64},
        texts={"notes": 128},
        categories={"smoker": ["no", "yes"]},
        fills={"weight": 70},
        missing_values=["", "NA"],
        drop=["patient", "site"],
        from_data=True,
        model="mlp=16,8",
        epochs=0.2,
        seeds=[0],
        method="global_adapt",
        seed=0,
        folder="python",
    )
    assert found.result.report.to_json() == result()["report"]
    assert found.result.model["options"]["hidden"] == [16, 8]
    assert found.encoding == read_encoding(result()["run"] / "encoding.json")
    assert call("compare", *RUN[1:], *OPTIONS, "--save-recipe", "same.toml") == 0
    text = Path("same.toml").read_text()
    options = Recipe.read(tmp_path / "same.toml").data.options
    assert options["dates"] == {"admitted": "dmy"}
    assert options["hashes"] == {"diagnosis": 64}
    assert options["drop"] == ["patient", "site"]
    assert "smoker" in text


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({}, ["--target", "smoker"], "--target is given 2 times; a model predicts one column"),
        ({"died": "no"}, ["--from-data"], "has one value only"),
        ({"died": "no", "sex": ""}, ["--from-data"], "leaves 0 training and 0 test rows"),
        ({}, ["--date", "admitted"], "is a date in the order that is declared"),
        ({}, ["--date", "admitted", "--from-data"], "(100 %) are no dates in the order that is"),
        (
            {},
            ["--date", "admitted", "--range", "admitted=2018-01-01:2022-12-31", "--from-data"],
            "No row has a number or date in 'admitted' as it is declared",
        ),
        ({}, ["--range", "admitted=1:2"], "give two dates"),
        ({}, ["--hash", "ward"], "as in --hash code=64"),
        ({}, ["--hash", "ward=0"], "bins of 'ward' is 0"),
        ({}, ["--prefix", "ward=x"], "as in --prefix code=3"),
        ({}, ["--text", "age=64", "--range", "age=0:9"], "a column is one or the other"),
        ({}, ["--fill", "ward"], "as in age=40"),
        ({}, ["--hash", "died=8"], "'died' is said to be a hash, and it is the target"),
        ({}, ["--drop", "ward,wrd"], "Did you mean 'ward'?"),
        ({}, ["--model", "mlp=16,x"], "sizes are given as in 'mlp=64,32'"),
        ({}, ["--model", "linear=3"], "sizes are given as in 'mlp=64,32'"),
        ({}, ["--model", "mlp=0"], "hidden layer is 0"),
        ({}, ["--model", "logistic"], "For a table there are linear, mlp, and mlp=64,32"),
        ({}, ["--encoding", "utf9"], "no encoding called 'utf9'"),
    ],
)
def test_what_cannot_be_is_told_and_nothing_is_charged(
    call: Called, tmp_path: Path, change: dict[str, str], options: list[str], words: str
) -> None:
    rows = [[change.get(name, cell) for name, cell in zip(NAMES, row, strict=True)]
            for row in records(200)]  # fmt: skip
    text = "\n".join(",".join(row) for row in (list(NAMES), *rows))
    Path("clinic.csv").write_text(text)
    given = {OPTIONS[k]: OPTIONS[k + 1] for k in range(0, len(OPTIONS), 2)}
    if options[0] in ("--date", "--hash", "--text"):  # another in its place
        del given[options[0]]
    declared = [word for pair in given.items() for word in pair]
    assert call(*RUN, *declared, *options) == 2
    assert words in call.err
    assert "Traceback" not in call.err
    assert nothing_charged(tmp_path)


def test_thirty_rows_and_a_group_of_one(call: Called, tmp_path: Path) -> None:
    header, *lines = clinic(tmp_path / "clinic.csv", 30).read_text().splitlines()
    assert call(*RUN, *OPTIONS) == 2
    assert "can be found privately" in call.err
    assert "Nothing was charged" in call.err
    assert nothing_charged(tmp_path)
    lines = [line[:-2] + ("yes" if k % 3 else "no") for k, line in enumerate(lines)]
    lines[4] = lines[4].replace(",f,", ",x,").replace(",m,", ",x,")
    Path("clinic.csv").write_text("\n".join([header, *lines]) + "\n")
    assert call("data", "look", "clinic.csv", "--target", "died", "--sensitive", "sex") == 0
    assert "the smallest 1" in " ".join(call.out.split())
    assert "this table is too small for that" in call.out
    code = call(*RUN, *OPTIONS, *TAKEN)
    assert code == 0 or "row" in call.err
    assert "Traceback" not in call.err


def test_a_table_from_another_country(call: Called, tmp_path: Path) -> None:
    rows = [
        [f"{k % 50 + 20},5", "Zürich" if k % 3 else "Köln", "ja" if (k // 7) % 2 else "nein"]
        for k in range(400)
    ]
    text = "\n".join(";".join(row) for row in (["alter", "stadt", "krank"], *rows))
    Path("other.csv").write_bytes(text.encode("latin-1"))
    assert call("train", "--data", "other.csv", "--target", "krank", "--from-data") == 2
    assert "--encoding latin-1" in call.err
    assert call("data", "look", "other.csv", "--target", "krank") == 0
    command = shlex.split(call.out.strip().splitlines()[-1])
    assert command[-4:] != []
    assert {"--encoding", "--decimal"} <= set(command)
    assert call(*command[1:], *TAKEN) == 0
    (run,) = Path("runs/other").iterdir()
    assert read_encoding(run / "encoding.json").columns[0].name == "alter"
    assert call("predict", run, "--data", "other.csv") == 0  # in the form of the training
    assert not call.err


def test_names_do_nothing_to_a_terminal(call: Called, tmp_path: Path) -> None:
    """An escape in a header, in a class and in an error is shown."""
    file = tmp_path / "odd.csv"
    cells = (f"{place},{'ye' if place % 2 else 'no'}\x1b[31ms" for place in range(60))
    file.write_text("\n".join(["size\x1b]0;owned\x07,came \x9bback", *cells]) + "\n")
    assert call("data", "look", file, "--target", "came \x9bback") == 0
    assert r"size\x1b]0;owned" in call.out
    assert r"came \x9bback is" in call.out
    assert r"ye\x1b[31ms" in call.out
    assert call("data", "look", file, "--target", "si\x1bze") == 2
    assert r"si\x1bze" in call.err
    assert not {"\x1b", "\x07", "\x9b"} & {*call.out, *call.err}
