"""What all runs on a table cost, as the command line says it: console, JSON, page, ledger."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from plumbline.experiments.user_folders import state_folder
from tests.cli.calling import Called
from tests.experiments.small_table import patients

RUN = [
    "train", "--data", "patients.csv", "--target", "died", "--drop", "code", "--range", "age=0:100",
    "--categories", "ward=east,west", "--categories", "died=no,yes", "--records", "300",
    "--model", "linear", "--method", "dpsgd", "--epochs", "1", "--batch", "60",
]  # fmt: skip


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Path:
    return patients(tmp_path / "patients.csv")


def test_both_totals_stand_everywhere(call: Called, tmp_path: Path) -> None:
    assert call(*RUN, "--epsilon", "2") == 0
    assert "Runs on this table are charged to" in call.err
    assert "No model on this table is marked as released." in call.out
    assert "Everything that was run on this table: 1 run. Together that costs" in call.out
    (folder,) = (tmp_path / "runs" / "patients").iterdir()
    assert call("release", folder) == 0
    assert f"The model in {folder} is marked as released." in call.out
    said = "The released model on this table costs a record at most epsilon 2.00"
    assert said in call.out

    assert call(*RUN, "--epsilon", "2", "--method", "nonprivate", "--json") == 0
    budget = call.json["budget"]
    assert 1.9 < budget["released"]["epsilon"] <= 2
    assert budget["everything"]["epsilon"] is None
    assert budget["everything"]["without privacy"] == 1
    assert "1 of them had no privacy (non-private)" in budget["words"][1]
    stored = json.loads((Path(call.json["folder"]) / "result.json").read_text())
    assert stored["budget"] == budget

    assert call("report", call.json["folder"]) == 0
    page = html.unescape((Path(stored_folder(call)) / "report.html").read_text())
    tiles = re.sub(r"<[^>]+>", " ", page)
    assert re.search(r"released models\s+ε 2\.00\s+1 model", tiles)
    assert re.search(r"everything together\s+no bound\s+2 runs on this table; 1 without", tiles)
    assert said in page

    assert call("ledger", "patients.csv", "--json") == 0
    assert {row["part"] for row in call.json["runs"].values()} == {"run"}
    assert [row["released"] for row in call.json["runs"].values()].count(True) == 1
    assert call("ledger", "patients.csv", "--delta", "1e-4") == 0
    assert said in call.out


def stored_folder(call: Called) -> Path:
    return Path(call.out.strip().splitlines()[-1]).parent


def test_the_same_rows_elsewhere_and_a_limit(call: Called, tmp_path: Path) -> None:
    assert call(*RUN, "--epsilon", "2", "--limit", "1") == 1
    assert "Nothing was charged" in call.err  # and the limit is not kept
    assert call(*RUN, "--epsilon", "2", "--limit", "3") == 0
    (folder,) = (tmp_path / "runs" / "patients").iterdir()
    assert call("release", folder, "--json") == 0
    assert call.json["limit"] == [3.0, 1e-4]
    shutil.move("patients.csv", "moved.csv")
    moved = [one.replace("patients.csv", "moved.csv") for one in RUN]
    with open("moved.csv", "a") as stream:
        stream.writelines(f"{30 + k},east,{k},no\n" for k in range(60))
    assert call(*moved, "--epsilon", "8") == 1
    assert "Nothing was charged" in call.err
    assert "by the limit that is kept in" in call.err
    assert not Path("runs/moved").exists()
    assert call(*moved, "--epsilon", "2.9") == 1  # not by itself, but with what is released
    assert "moved.csv has the rows of patients.csv and others" in call.err
    assert "could not be released" in call.err
    assert call(*moved, "--epsilon", "1") == 0
    (other,) = Path("runs/moved").glob("*/result.json")
    assert call("release", other.parent) == 0
    assert "The 2 released models on this table cost a record together" in call.out
    assert call(*moved, "--epsilon", "1", "--limit", "9", "--out", "again") == 1
    assert "A limit is set once" in call.err


def test_wrong_use(call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("release", "nowhere") == 2
    assert call("ledger", "patients.csv") == 2
    assert "No run on patients.csv is known here" in call.err
    assert call(*RUN, "--limit", "-1") == 2
    state_folder().parent.mkdir(exist_ok=True)
    monkeypatch.setenv("PLUMBLINE_STATE", str(tmp_path / "patients.csv"))  # which is no folder
    assert call(*RUN) == 1
    assert "name a ledger with --ledger" in call.err
    assert not Path("runs").exists()
    assert call(*RUN, "--ledger", "own") == 0
    (folder,) = Path("runs/patients").glob("DP-SGD*")
    assert call("release", folder) == 0
    assert "The released model on this ledger costs a record at most" in call.out
