"""The commands of a new user, on a table of their own and on parts from outside the package."""

from pathlib import Path

import pytest

from plumbline.experiments import Recipe
from plumbline.experiments.run_spec import read_spec
from tests.cli.calling import Called
from tests.instruments.people import patients

QUICK = ["--epochs", "1", "--batch", "60"]
TABLE = [
    "--from-data",
    "--data",
    "patients.csv",
    "--target",
    "readmitted",
    "--sensitive",
    "sex",
    *QUICK,
]
OUTSIDE = ["--data", "outside_parts.tables:our_patients", *QUICK]
OUTSIDE += ["--model", "outside_parts.networks:small_net", "--loss", "outside_parts.losses:focal"]
FEW = ["--trials", "1", "--seeds", "1", "--workers", "1"]


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Path:
    return patients(tmp_path / "patients.csv", 300)


def test_compare_diagnose_verify_and_predict(call: Called, tmp_path: Path) -> None:
    assert call("compare", *TABLE, "--epsilon", "1,3,8", *FEW) == 0
    for row in ("non-private", "Global-Adapt", "DPSGD-F", "BAM", "linear model"):
        assert f"{row} (tuned)" in call.out
    assert "epsilon 8" in call.out
    assert "Tuning on private records costs privacy too" in call.out
    assert "6 of 6 trials are done" in call.err
    page = (tmp_path / "runs" / "patients" / "report.html").read_text()
    assert "Accuracy against epsilon" in page
    assert call("verify", "runs/patients", "--data") == 0
    assert "Nothing is contradicted in" in call.out
    assert call("diagnose", *TABLE, "--method", "dpsgd") == 0
    assert "The bias of clipping is" in call.out
    (run,) = (tmp_path / "runs" / "patients").glob("BAM--tuned--seed0-*")
    for command in (["verify", "--data"], ["diagnose"], ["report"], ["audit", "membership"]):
        name, *more = command if command[0] != "audit" else [" ".join(command)]
        assert call(*name.split(), run, *more) == 0
    assert call("predict", run, "--data", "patients.csv") == 0


def test_the_recipe_that_says_the_same(call: Called, tmp_path: Path) -> None:
    assert call("compare", *TABLE, "--epsilon", "1,3,8", "--save-recipe", "same.toml") == 0
    made = Recipe.read(tmp_path / "same.toml")
    assert made.epsilons == (1, 3, 8)
    assert (made.tune.trials, made.tune.before_comparing) == (8, True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("outside")
def test_parts_from_outside_are_compared(call: Called) -> None:
    methods = "dpsgd,outside_parts.rules:Soft,outside_parts.ways:soft_bam"
    assert call("compare", *OUTSIDE, "--methods", methods, *FEW, "--json") == 0
    titles = [row["method"] for row in call.json["rows"]]
    assert titles == ["DP-SGD", "DP-SGD (tuned)", "Soft (tuned)", "soft_bam (tuned)"]
    own = ["--method", "outside_parts.ways:soft_bam"]
    own += ["--measure", "outside_parts.looks:longest_gradient", "--measure", "bias"]
    assert call("diagnose", *OUTSIDE, *own, "--json") == 0
    assert "longest_gradient" in str(call.json["readings"][-1])


@pytest.mark.usefixtures("outside")
def test_one_that_lies_about_its_sensitivity_is_refused(call: Called, tmp_path: Path) -> None:
    methods = "dpsgd,outside_parts.rules:SoftLiar"
    assert call("compare", *OUTSIDE, "--methods", methods, *FEW, "--trials", "0") == 2
    assert "moves by 1.5, not 1" in call.err
    assert len(call.err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("ledger"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "no_such:Net"], "the module 'no_such' cannot be imported"),
        (["--model", "chen-mnist"], "cannot take the data 'patients.csv': a record has the shape"),
        (["--methods", "dpsgd,dpsgd"], "two methods are called 'DP-SGD'"),
        (["--drop", "aeg"], "Did you mean 'age'?"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_charged(
    call: Called, tmp_path: Path, options: list[str], words: str
) -> None:
    assert call("compare", *TABLE, *options, *FEW) == 2
    assert words in call.err
    assert len(call.err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("ledger"))


def test_a_run_stands_for_its_data_and_settings(call: Called, tmp_path: Path) -> None:
    """What its page says to do next works: the same run changed, and a comparison on its data."""
    found = ["--data", "patients.csv", "--target", "readmitted", "--sensitive", "sex"]
    known = ["--categories", "readmitted=no,yes", "--categories", "sex=f,m"]
    assert call("train", *found, *known, "--epsilon", "50", "--epochs", "1") == 0
    (run,) = (tmp_path / "runs" / "patients").glob("Global-Adapt-*")
    assert call("train", run, "--threshold", "auto") == 0
    assert "is predicted from a probability of" in call.out
    assert "Found privately" not in call.err  # what was found is not asked for again
    options = ["--epsilon", "20,50", "--methods", "dpsgd", *FEW, "--save-recipe", "c.toml"]
    assert call("compare", run, *options) == 0
    made, own = Recipe.read(tmp_path / "c.toml"), read_spec(run).recipe
    assert made.data == own.data
    assert made.budget == own.budget
    assert made.epsilons == (20, 50)
    assert (made.tune.trials, len(made.seeds)) == (1, 1)
    assert [row.title for row in made.methods] == ["DP-SGD"]
    assert call("compare", run, "--save-recipe", "d.toml") == 0
    usual = Recipe.read(tmp_path / "d.toml")
    assert [row.label for row in usual.methods][-1] == "linear model"
    assert (usual.tune.trials, len(usual.seeds)) == (8, 3)


def test_a_run_that_is_diagnosed_keeps_the_reading_for_its_page(
    call: Called, tmp_path: Path
) -> None:
    assert call("train", *TABLE) == 0
    (run,) = (tmp_path / "runs" / "patients").glob("Global-Adapt-*")
    reading = 'Clipping in <span class="whole">Global-Adapt</span>'
    assert reading not in (run / "report.html").read_text()
    assert call("diagnose", run) == 0
    assert "One reading, after the last step" in call.out
    assert reading in (run / "report.html").read_text()
    assert call("verify", run) == 0  # the files of the run are what they were
