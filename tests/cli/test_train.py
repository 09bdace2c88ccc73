"""``plumbline train``: a person's own table, from the file to the statement."""

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline import models
from plumbline.experiments import running
from plumbline.mechanism.ledger import Ledger
from plumbline.training import Private
from plumbline.training.fitting import StepInfo
from tests.cli.calling import Called, people, small_recipe

RUN = ["train", "--from-data", "--data", "people.csv", "--target", "income", "--sensitive", "sex"]
SHORT = [*RUN, "--epochs", "3", "--batch", "80", "--seed", "0", "--out", "run"]


@pytest.fixture(autouse=True)
def table(tmp_path: Path) -> Path:
    return people(tmp_path / "people.csv")


def run_in(out: Path = Path("run")) -> Path:
    """The only run's folder below ``out``."""
    (folder,) = (path for path in out.glob("people/*") if path.is_dir())
    return folder


def test_a_run_is_logged_where_asked(call: Called) -> None:
    assert call(*SHORT, "--log", "csv", "--no-page") == 0
    lines = (run_in() / "log.csv").read_text().splitlines()
    assert any(line.startswith("12,covered/epsilon,") for line in lines)
    assert any(line.startswith("12,not covered/held out/") for line in lines)
    assert call(*SHORT, "--log", "paper") == 2


def test_a_run_leaves_everything_in_its_folder(call: Called, tmp_path: Path) -> None:
    assert call(*SHORT, "--epsilon", "8", "--method", "global-adapt", "--set", "clip=0.5") == 0
    folder = run_in()
    assert {path.name for path in folder.iterdir()} == {
        "recipe.json", "result.json", "metrics.jsonl", "model.pt", "statement.txt", "ledger",
        "manifest.json", "versions.json", "data.PRIVATE", "encoding.json", "report.html",
        "account.json",
    }  # fmt: skip
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == 12
    assert 7.9 < result["epsilon"] <= 8
    assert result["epsilon"] == pytest.approx(Ledger.read(folder / "ledger").epsilon(1e-4))
    assert set(result["report"]["by_group"]) == {"f", "m"}
    assert result["model"]["options"] == {"features": 13, "classes": 2, "hidden": 64}
    assert result["settings"] == {"clip": 0.5}
    model = models.build(result["model"]["name"], **result["model"]["options"])
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    statement = (folder / "statement.txt").read_text()
    assert "epsilon = 8.00" in statement
    # What the reading of the table took from the private rows is repeated.
    assert "the lowest and highest value of age, hours: computed from" in statement
    assert "- encoding.json, which holds what is computed from the training records" in statement
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    assert "Delta is 1e-4" in call.err
    assert "epsilon = 8.00" in call.out
    assert "not covered by epsilon" in call.out


def test_the_defaults_learn_something_and_are_secure(call: Called, tmp_path: Path) -> None:
    people(tmp_path / "people.csv", 4000)
    assert call(*RUN, "--json") == 0
    found = call.json
    assert found["report"]["overall"]["accuracy"] > 0.85
    assert found["delta"] == 1e-5
    assert "operating system's entropy" in found["statement"]
    assert Path(found["folder"]).parts[:2] == ("runs", "people")
    ran = json.loads((Path(found["folder"]) / "recipe.json").read_text())
    assert ran["budget"]["expected_batch_size"] == 256
    assert ran["noise"] == "secure"


def test_a_finished_run_is_read_and_another_is_another(call: Called) -> None:
    assert call(*SHORT, "--json") == 0
    first = call.json
    assert call(*SHORT, "--json") == 0
    assert "This run is finished" in call.err
    assert call.json == first
    for other in (["--epsilon", "1"], ["--drop", "hours"], ["--categorical", "hours"]):
        assert call(*SHORT, *other, "--json") == 0
        assert call.json["folder"] != first["folder"]


def flip(path: Path) -> None:
    """Every label becomes the other."""
    text = path.read_text().replace(",low\n", ",?\n").replace(",high\n", ",low\n")
    path.write_text(text.replace(",?\n", ",high\n"))


def test_a_finished_run_is_not_that_of_other_rows(call: Called, tmp_path: Path) -> None:
    test = people(tmp_path / "later.csv", 100)
    run = [*SHORT, "--test", "later.csv"]
    assert call(*run) == 0
    for path in (tmp_path / "people.csv", test):
        before = path.read_text()
        flip(path)
        assert call(*run) == 2
        assert f"the content of {path.name} is not what the run was started" in call.err
        assert call.err.count("is not what") == 1
        path.write_text(before)
    assert call(*run) == 0
    assert "This run is finished" in call.err


def interrupted_at(step: int, times: int = 1) -> Any:
    """Ctrl-C in the step's log, pressed so often."""
    log = running._Log.after_step

    def after_step(self: Any, private: Private, info: StepInfo) -> None:
        log(self, private, info)
        if info.step == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return after_step


def test_a_run_does_not_go_on_with_other_rows(
    call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(running._Log, "after_step", interrupted_at(1))
        assert call(*SHORT) == 130
    flip(tmp_path / "people.csv")
    charged = (run_in() / "ledger").read_bytes()
    assert call(*SHORT) == 2
    assert "the content of people.csv is not what the run was started on" in call.err
    assert (run_in() / "ledger").read_bytes() == charged
    flip(tmp_path / "people.csv")
    assert call(*SHORT) == 0
    assert "Going on with the run in" in call.err


def test_the_digest_of_the_data_is_in_no_file_to_be_published(call: Called, tmp_path: Path) -> None:
    assert call(*SHORT) == 0
    digest = hashlib.sha256((tmp_path / "people.csv").read_bytes()).hexdigest()
    having = [p for p in run_in().iterdir() if digest in p.read_text(errors="replace")]
    assert [path.name for path in having] == ["data.PRIVATE"]
    (kept,) = having
    assert kept.read_text().startswith("PRIVATE: ")
    assert "never publish it" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0
    assert "PRIVATE" not in (run_in() / "manifest.json").read_text()
    # Nor can a category be read from the settings: only what the columns are called.
    assert "Oslo" not in (run_in() / "recipe.json").read_text()
    kept.write_text("PRIVATE: [")
    assert call(*SHORT) == 1
    assert "data.PRIVATE is damaged" in call.err


def test_ctrl_c_stops_after_a_step_and_the_same_command_goes_on(
    call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*SHORT[:-1], "whole") == 0
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(running._Log, "after_step", interrupted_at(5))
        assert call(*SHORT) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopped after step 5 of 12, which is saved in run" in call.err
    assert "plumbline train --from-data --data people.csv" in call.err
    assert not (run_in() / "result.json").exists()
    assert call(*SHORT) == 0
    assert "Going on with the run in" in call.err
    ours, whole = (
        torch.load(run_in(Path(name)) / "model.pt", weights_only=True) for name in ("run", "whole")
    )
    for name, value in whole.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=0)
    rows = (run_in() / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [3, 6, 9, 12]


def test_an_impatient_ctrl_c_breaks_the_step_off(
    call: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(running._Log, "after_step", interrupted_at(1, times=2))
        assert call(*SHORT) == 130
    assert "broken off" in call.err
    assert call(*SHORT) == 0
    # With a seed the steps after the checkpoint are made again, at no further cost.
    assert json.loads((run_in() / "result.json").read_text())["steps"] == 12


def test_a_run_that_only_has_to_be_evaluated_loses_nothing(
    call: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = [*RUN, "--epochs", "1", "--batch", "80", "--out", "run"]
    usual = running.evaluate_run

    def interrupted(private: Private, splits: Any, threshold: Any = None) -> Any:
        if private.steps_done == 4 and (run_in() / "checkpoint.pt").stat().st_mtime_ns > first:
            raise KeyboardInterrupt
        return usual(private, splits, threshold)

    first = 0
    with monkeypatch.context() as patch:
        patch.setattr(running._Log, "_measured", lambda *_: None)
        patch.setattr(running, "evaluate_run", interrupted)
        assert call(*secure) == 130
    assert call(*secure) == 0
    result = json.loads((run_in() / "result.json").read_text())
    assert result["steps"] == 4
    assert "results lost" not in result["statement"]


def test_several_sensitive_columns_intersect(call: Called) -> None:
    several = ["--sensitive", "city", "--method", "dpsgd-f"]
    assert call(*SHORT, *several, "--json") == 0
    groups = call.json["report"]["by_group"]
    assert len(groups) == 6
    assert "sex=f & city=Oslo" in groups
    assert call.json["settings"]["groups"] == [0, 1, 2, 3, 4, 5]
    sizes = call.json["report"]["sizes"]
    assert sum(sizes.values()) == 80


def test_a_method_without_a_guarantee_says_so(call: Called) -> None:
    assert call(*SHORT, "--method", "nonprivate", "--json") == 0
    assert call.json["epsilon"] == "inf"
    assert "No guarantee: the method 'nonprivate' adds no noise." in call.err


def test_a_shared_ledger_is_charged(call: Called, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        again = [*RUN, "--epochs", "1", "--batch", "80", "--seed", seed, "--out", f"run{seed}"]
        assert call(*again, "--ledger", "all") == 0
    assert len(Ledger.read(tmp_path / "all").runs()) == 2
    assert not (run_in(Path("run1")) / "ledger").exists()


def test_a_run_of_a_recipe(call: Called, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path)
    assert call("train", recipe, "--method", "dpsgd", "--json") == 0
    found = call.json
    assert (found["method"], found["seed"], found["steps"]) == ("DPSGD", 0, 8)
    assert set(found["report"]["by_group"]) == {"female", "male"}
    changed = ["--epsilon", "3", "--method", "dpsgd", "--set", "clip=2", "--seed", "7"]
    assert call("train", recipe, *changed, "--learning-rate", "0.5") == 0
    assert "epsilon = 3.00" in call.out
    assert call("train", recipe, "--method", "normalised", "--json") == 0
    assert call.json["method"] == "normalised"
    assert call("train", recipe, "--target", "income") == 2
    assert "--target describes a table, which --data names" in call.err
    assert call("train", recipe, "--model", "linear") == 2
    assert "'model' is given beside the recipe 'small'" in call.err


def test_a_run_of_a_recipe_with_another_accountant_and_optimizer(
    call: Called, tmp_path: Path
) -> None:
    recipe = small_recipe(tmp_path)
    other = ["--accountant", "rdp", "--optimizer", "adam", "--batch", "40"]
    rows = recipe.read_text() + "expected_batch_size = 64\n"  # of the row, which is asked for less
    recipe.write_text(rows.replace("[optimizer]\n", "[optimizer]\noptions = { momentum = 0.9 }\n"))
    assert call("train", recipe, "--method", "dpsgd", *other, "--json") == 0
    assert "Rényi differential privacy (RDP), over all steps" in " ".join(
        call.json["statement"].split()
    )
    assert "expected batch size 40" in " ".join(call.json["statement"].split())
    ran = json.loads((tmp_path / call.json["folder"] / "recipe.json").read_text())
    assert ran["optimizer"] == {"name": "adam", "learning_rate": 0.1}


BROKEN = "age,sex,income\n1,f,low\n2,m\n"
NANS = "age,sex,income\n" + "1,f,low\n2,m,high\nnan,f,low\n" * 30
GAPS = "age,sex,income\n" + "1,f,low\n2,m,high\n,f,low\n" * 30
NUMBERS = "age,sex,income\n" + "".join(f"{k},f,{k}\n" for k in range(300))
NAMES = "name,sex,income\n" + "".join(f"n{k},f,{'ab'[k % 2]}\n" for k in range(300))
WORDS = "age,sex,income\n" + "".join(f"{k if k else 'NA'},f,{'ab'[k % 2]}\n" for k in range(300))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, ["--data", "nosuch.csv"], "There is no file nosuch.csv"),
        (None, ["--data", "people.txt"], "There is no file people.txt"),
        (None, ["--target", "age"], "--target is given 2 times; a model predicts one column"),
        (None, ["--sensitive", "sx"], "called 'sx'. Did you mean 'sex'?"),
        (None, ["--drop", "howrs"], "Did you mean 'hours'?"),
        (None, ["--epsilon", "0"], "--epsilon is 0; it must be positive"),
        (None, ["--delta", "1"], "delta: Input should be less than 1"),
        (None, ["--delta", "0.1"], "it must be below 1/320"),
        (None, ["--batch", "1000"], "more than the 320 records"),
        (None, ["--method", "dpsdg"], "Did you mean 'dpsgd'?"),
        (None, ["--method", "dpsgd", "--set", "clp=1"], "Did you mean 'clip'?"),
        (None, ["--method", "dpsgd", "--set", "clip"], "as in --set clip=0.5"),
        (None, ["--method", "dpsgd", "--set", "clip=-1"], "clip"),
        (None, ["--set", "clip=1"], "say which with --method"),
        (None, ["--method", "normalised", "--set", "clip=1"], "no option 'clip'. There are none"),
        (None, ["--method", "batch-clipping"], "needs the option 'public'"),
        (None, ["--method", "my.rules:Soft"], "the module 'my.rules' cannot be imported"),
        (None, ["--model", "adult-mpl"], "Did you mean 'adult-mlp'?"),
        (None, ["--model", "chen-mnist"], "cannot take the data 'people.csv'"),
        (None, ["--sensitive", "income"], "cannot be sensitive"),
        (None, ["--sensitive", "hours"], "at most 30"),
        (None, ["--learning-rate", "0"], "learning_rate: Input should be greater than 0"),
        (None, ["--learning-rate", "inf"], "learning_rate: Input should be a finite number"),
        (None, ["--epochs", "0"], "epochs: Input should be greater than 0"),
        ("", [], "has no rows"),
        ("\x00\xff", [], "people.csv"),
        (BROKEN, [], "Row 2 of people.csv has 2 cells where the header has 3"),
        (
            GAPS,
            ["--missing", "error"],
            "filled (--missing fill), or leave out such rows (--missing drop)",
        ),
        (NANS, ["--missing", "error"], "holds numbers, but"),
        ("age;sex;income\n1;f;low\n", [], "the target has one value only"),
        ("age,sex,income\n1,\xfc,low\n", [], "is not UTF-8 (line 2)"),
        (NUMBERS, [], "Say --task regression to predict a number"),
        (NAMES, [], "--drop name"),
        (
            WORDS,
            ["--missing", "error"],
            "holds numbers, but not in 1 of its cells. Have them filled",
        ),
    ],
)
def test_what_cannot_work_is_told_before_anything_runs(
    call: Called, tmp_path: Path, content: str | None, options: list[str], message: str
) -> None:
    if content is not None:
        (tmp_path / "people.csv").write_text(content, encoding="latin-1")
    arguments = list(RUN) if "--sensitive" not in options else RUN[:-2]
    assert call(*arguments, *options) == 2
    assert message in call.err
    assert "Traceback" not in call.err


def test_rows_that_lack_a_value_can_be_left_out(call: Called, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(WORDS)
    more = ["--missing-value", "NA", "--missing", "drop", "--epochs", "1", "--json"]
    assert call(*RUN, *more) == 0
    assert call.json["model"]["options"]["features"] == 3
    assert sum(call.json["report"]["sizes"].values()) == 62
    assert call(*RUN, *more[:2], "--missing", "fill", *more[4:]) == 0


@pytest.mark.parametrize("options", [[], ["--data", "people.csv"]])
def test_what_is_missing_is_asked_for(call: Called, options: list[str]) -> None:
    assert call("train", *options) == 2
    assert "--target" in call.err
    assert "Traceback" not in call.err
