"""What to do next: commands that name the run, and are those that it needs."""

import json
from pathlib import Path

from plumbline.report import read
from plumbline.report.next_steps import next_steps
from tests.report.made import comparison


def run_of(tmp_path: Path, *, readings: bool = True, **changed: float) -> Path:
    """The folder of a run whose metrics are changed."""
    folder = comparison(tmp_path / "c", readings=readings)
    run = next(path for path in folder.iterdir() if path.name.startswith("dpsgd-seed0"))
    result = run / "result.json"
    stored = json.loads(result.read_text())
    for values in (stored["report"]["overall"], *stored["report"]["by_group"].values()):
        values.update(changed)
    result.write_text(json.dumps(stored))
    return run


def commands(run: Path) -> list[str]:
    return [step.command.replace(str(run), "RUN") for step in next_steps(read(run))]


def test_a_run_that_beats_the_baseline_is_compared_and_verified(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert commands(run) == ["plumbline compare RUN --epsilon 1,3,8", "plumbline verify RUN"]


def test_what_was_not_measured_is_to_be_diagnosed(tmp_path: Path) -> None:
    assert commands(run_of(tmp_path, readings=False))[0] == "plumbline diagnose RUN"


def test_a_run_that_ranks_and_does_not_decide_needs_a_threshold(tmp_path: Path) -> None:
    same = {"baseline accuracy": 0.9, "accuracy": 0.9, "auc": 0.75, "most predicted": 1.0}
    assert commands(run_of(tmp_path, **same))[0] == "plumbline train RUN --threshold auto"
    same |= {"auc": 0.52}
    assert "--threshold" not in " ".join(commands(run_of(tmp_path / "other", **same)))


def test_a_run_on_a_table_predicts_new_rows(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (run / "encoding.json").write_text("{}")
    assert "plumbline predict RUN --data NEW.csv" in commands(run)


def test_of_python_objects_nothing_can_be_run_again_from_the_command_line(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["model"] = {"name": "object:network:0123456789"}
    (run / "recipe.json").write_text(json.dumps(recipe))
    assert commands(run) == ["plumbline verify RUN"]
