"""``plumbline compare``, ``report`` and ``diagnose``, on a recipe of a second."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from plumbline.cli.app import console
from plumbline.cli.compare import comparison, seconds
from plumbline.experiments import running
from plumbline.report.page import page as write
from plumbline.report.reading import read
from tests.cli.calling import Called, small_recipe
from tests.report import made


def test_the_table_the_verdict_and_the_page(
    call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 80)
    recipe = small_recipe(tmp_path)
    assert call("compare", recipe, "--workers", "1") == 0
    lines = call.out.splitlines()
    head = lines[0].split()
    assert head == ["method", "epsilon", "accuracy", "AUC", "male", "female", "loss", "p", "time"]
    assert next(line for line in lines if line.startswith("DPSGD"))
    assert "± is the standard error over 2 seeds." in call.out
    page = tmp_path / lines[-1].removeprefix("page: ")
    assert page.is_file()
    assert "4 of 4 runs are done" in call.err
    # Again: nothing is repeated, and machines get the same numbers.
    assert call("compare", recipe, "--json", "--no-page") == 0
    found = call.json
    assert [row["method"] for row in found["rows"]] == ["non-private", "DPSGD"]
    assert found["rows"][0]["epsilon"] == "inf"
    assert len(found["rows"][1]["overall"]["accuracy"]["per_run"]) == 2
    assert found["page"] is None
    assert found["verdict"]
    assert call("report", tmp_path / "runs" / "small", "--json") == 0
    assert Path(call.json["page"]).is_file()


def test_every_table_shows_the_epsilon_of_the_statement(tmp_path: Path) -> None:
    study = read(made.comparison(tmp_path / "c"))
    rows = [replace(row, epsilon=3.0049) for row in study.table.rows]
    table = replace(study.table, rows=tuple(rows))
    assert set(comparison(table).columns[1].cells) == {"3.01"}
    assert str(table).count("| 3.01 |") == len(rows)
    page = write(replace(study, table=table))
    assert "At epsilon 3.01 (delta" in page
    assert "ε = 3.01" in page


def test_ctrl_c_keeps_what_is_finished(
    call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe(tmp_path)
    after_step = running._Log.after_step
    calls = []

    def interrupted(*arguments: object) -> None:
        after_step(*arguments)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 12:  # in the second run
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(running._Log, "after_step", interrupted)
        assert call("compare", recipe, "--workers", "1") == 130
    assert "stopped: 1 of 4 runs are finished and kept in" in call.err
    assert f"plumbline compare {recipe} --workers 1" in call.err
    assert len(list((tmp_path / "runs").rglob("result.json"))) == 1
    assert call("compare", recipe, "--workers", "1") == 0


def test_a_selection_that_epsilon_covers(call: Called, tmp_path: Path) -> None:
    options = ["--private-selection", "--epsilon", "5", "--trials", "2", "--seed", "0"]
    options += ["--methods", "DPSGD", "--workers", "1", "--no-page"]
    assert call("compare", small_recipe(tmp_path), *options) == 0
    (statement,) = (tmp_path / "runs" / "small").glob("DPSGD--selected-*/statement.txt")
    assert "covers the training of every candidate" in " ".join(statement.read_text().split())
    assert call("compare", small_recipe(tmp_path), *options, "--json") == 0
    (row,) = call.json["rows"]
    assert row["epsilon"] <= 5


def test_a_method_is_diagnosed(call: Called, tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, steps=20)
    assert call("diagnose", recipe, "--method", "dpsgd", "--probed", "32") == 0
    assert "not covered by epsilon" in call.out.splitlines()[1]
    assert "relative" in call.out
    assert "The bias of clipping is" in call.out
    assert "female" in call.out
    assert "clip 0.5" in call.out
    assert "not covered by epsilon" in call.out.splitlines()[-1]
    run = next((tmp_path / "runs" / "small").glob("DPSGD-*"))
    assert call("diagnose", run, "--json") == 0
    found = call.json
    assert "not covered" in found["label"]
    assert len(found["readings"]) == 20
    assert found["verdict"]["findings"]


def test_the_model_of_a_run_without_measurements_is_diagnosed(call: Called, tmp_path: Path) -> None:
    assert call("train", small_recipe(tmp_path), "--method", "dpsgd") == 0
    run = next((tmp_path / "runs" / "small").glob("DPSGD-*"))
    assert call("diagnose", run) == 0
    assert "DPSGD: 1 reading of 256 training records" in call.out
    assert call("diagnose", small_recipe(tmp_path), "--method", "dpsdg") == 2
    assert "Did you mean" in call.err


def test_durations_are_short() -> None:
    assert [seconds(value) for value in (3.2, 120, 7200)] == ["3 s", "2 min", "2.0 h"]


def test_a_part_of_a_job_array_ends_well_and_the_whole_puts_parts_together(
    call: Called, tmp_path: Path
) -> None:
    recipe = small_recipe(tmp_path)
    for part in ("1/2", "2/2"):
        assert call("compare", recipe, "--workers", "1", "--shard", part) == 0
        assert call.out == ""
        assert f"Part {part} is made: 2 of 4 runs" in call.err
    assert call("compare", recipe, "--workers", "1", "--no-page") == 0
    assert "4 of 4 runs are done" in call.err.splitlines()[0]
    assert "DPSGD" in call.out
    assert call("compare", recipe, "--shard", "3/2") == 2
    assert "from 1/16 to 16/16" in call.err
