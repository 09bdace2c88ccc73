"""``plumbline export``, and what is done with what it wrote."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.calling import Called, call_once, copy_here, people

TRAIN = ["train", "--data", "people.csv", "--target", "income", "--categories", "income=low,high"]
TRAIN += ["--categories", "city=Oslo,Rome,Lima", "--categories", "sex=f,m", "--range", "age=18:80"]
TRAIN += ["--range", "hours=0:60", "--records", "400", "--epochs", "2", "--batch", "80"]
TRAIN += ["--out", "run", "--epsilon", "8"]
NEW = "age,city,sex,hours\n30,Oslo,f,40\n,Cairo,,12\nold,,m,99\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    people(folder / "people.csv")
    out = call_once(folder, *TRAIN)
    assert "ship it: plumbline export run/people/Global-Adapt" in " ".join(out.split())
    return folder


@pytest.fixture
def run(call: Called, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_here(trained, monkeypatch)
    (folder,) = (tmp_path / "run" / "people").iterdir()
    return folder


def test_it_says_what_leaves_what_stays_and_why(call: Called, run: Path) -> None:
    assert call("export", "run/people", "--no-program") == 0
    out = " ".join(call.out.split())
    safe = "people-model is safe to ship: what is in it is public, or covered by epsilon 8.00 at "
    assert f"{safe}delta 1e-4. The run was verified: epsilon was derived again" in out
    for name in ("model.pt", "encoding.json", "statement.txt", "README.md", "predict.py", "rows/"):
        assert name in out
        assert Path("people-model", name).exists()
    for name in ("ledger", "result.json", "metrics.jsonl", "data.PRIVATE", "recipe.json"):
        assert name in out
        assert not Path("people-model", name).exists()
    assert "- Metrics are left out" in out
    assert "python people-model/predict.py NEW.csv > scored.csv" in out
    assert not call.err
    assert call("export", "run/people") == 1
    assert "Not exported: people-model is there already" in call.err


def test_for_machines(call: Called, run: Path) -> None:
    arguments = ["--no-program", "--with-metrics", "--out", "a/b", "--json"]
    assert call("export", run, *arguments) == 0
    assert (call.json["folder"], call.json["epsilon"]) == ("a/b", 8.0)
    assert set(call.json["leaves"]) == {"rows/", *(p.name for p in Path("a/b").glob("*.*"))}
    assert "ledger" in call.json["stays"]
    assert (call.json["notes"], call.json["unsafe"]) == ([], [])
    assert call.json["spent"][0].startswith("The released model on this table costs a record")
    assert call.json["asked"] == ["metrics of held-out records"]


def test_a_model_that_is_not_private(call: Called, tmp_path: Path) -> None:
    people(tmp_path / "people.csv")
    assert call(*TRAIN, "--seed", "3") == 0
    assert call("export", "run/people") == 1
    assert "is not safe to ship. Its noise comes from a seed" in call.err
    assert not Path("people-model").exists()
    assert call("export", "run/people", "--not-private", "--no-program") == 0
    assert "people-model is NOT safe to ship as a private model. Its noise" in call.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run/none"], 1, "There is no folder run/none"),
        (["."], 1, "is not the folder of a run: it has no recipe.json"),
        (["run/people", "--ledger", "none"], 1, "there is no ledger at none"),
        ([], 2, "Missing argument 'RUN'"),
    ],
)
def test_what_is_not_exported(
    call: Called, run: Path, arguments: list[str], code: int, message: str
) -> None:
    before = sorted(Path().iterdir())
    assert call("export", *arguments) == code
    assert message in call.err
    assert sorted(Path().iterdir()) == before


def test_predict_on_an_export(call: Called, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(NEW)
    assert call("export", run, "--no-program") == 0
    written = []
    for folder in (str(run), "people-model"):
        assert call("predict", folder, "--data", "new.csv", "--out", "scored.csv") == 0
        assert "city: 1 row has a category that the model does not know" in call.err
        written.append(Path("scored.csv").read_text())
    assert written[0] == written[1]
    assert len(list(csv.DictReader(io.StringIO(written[0])))) == 3
    assert call("verify", "people-model") == 2
    assert "It is an exported model" in call.err


@pytest.mark.parametrize("missing", ["fill", "blank", "error"])
def test_rows_as_json_lines(
    call: Called, run: Path, tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"age": 30, "city": "Oslo", "sex": "f", "hours": 40, "note": "x"},
        {"age": None, "city": "Cairo", "sex": None, "hours": 12},
        {"age": 30, "city": "Oslo"},
        {"age": 30, "city": ["Oslo"], "sex": "f", "hours": 40},
        {"age": "30", "city": "Oslo", "sex": "f", "hours": "40.0"},
    ]
    lines = [json.dumps(row) for row in rows]
    given = "\n".join([*lines[:3], "not json", "", *lines[3:]]).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert call("predict", "run/people", "--data", "-", "--missing", missing) == 0
    said = [json.loads(line) for line in call.out.splitlines()]
    assert [one["row"] for one in said] == list(range(1, 8))
    first, lacks, absent, bad, empty, nested, last = said
    assert {**first, "row": 0} == {**last, "row": 0}
    assert first["probability_low"] + first["probability_high"] == pytest.approx(1, abs=2e-6)
    assert absent["error"] == "There is no 'sex', 'hours'; a missing value is null."
    assert bad["error"] == "The line is not JSON."
    assert empty["error"] == "The line is empty."
    assert nested["error"] == "'city' is no text, number, true, false or null."
    if missing == "fill":
        assert lacks["prediction"] in ("low", "high")
    elif missing == "blank":
        assert lacks == {"row": 2, "prediction": None}
    else:
        assert lacks["error"] == "'sex' has no value, or none of its kind."
    assert f"{5 if missing == 'error' else 4} of 7 rows have an error." in call.err
    (tmp_path / "same.csv").write_text("age,city,sex,hours\n30,Oslo,f,40\n")
    assert call("predict", "run/people", "--data", "same.csv") == 0
    (row,) = csv.DictReader(io.StringIO(Path("predictions.csv").read_text()))
    assert row["prediction"] == first["prediction"]
    assert float(row["probability_low"]) == first["probability_low"]


@pytest.mark.parametrize("option", [["--out", "x.csv"], ["--json"]])
def test_json_lines_go_to_standard_output(call: Called, run: Path, option: list[str]) -> None:
    assert call("predict", "run/people", "--data", "-", *option) == 2
    assert f"leave {option[0]} out" in call.err
