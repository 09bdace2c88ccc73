"""Published numbers beside ours, from two files to the page."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from plumbline.experiments.paper_verdicts import PaperVerdict
from plumbline.experiments.papers import names
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.reproducing import (
    RESULT,
    read_reproduction,
    reproduce,
    reproduce_all,
)
from plumbline.experiments.reproduction_text import section, summary
from plumbline.experiments.run_result import commit
from plumbline.experiments.studies.larger_class import LARGER_CLASS
from tests.experiments.small_paper import CLAIM, HEAD, HOLDS, NEAR, NEAR_NEW, PLAN, ROWS


def test_the_page_has_all_of_it(judged: Any, tmp_path: Path) -> None:
    claim = '[[claims]]\nsays = "new is slow"\nabove = [["new / time", 2.0, 1.5]]\n'
    found = judged(
        ROWS + CLAIM + claim,
        {
            **{**HOLDS, **NEAR, **NEAR_NEW, "new / time": 3.0, "new / readings": 5.0},
            **{f"{LARGER_CLASS} / loss": 0.7, f"{LARGER_CLASS} / loss / a": 0.6},
        },
        {"new / loss": 0.35},
    )
    text = section(found)
    assert "readings" not in text  # no claim is about them; the runs have them
    assert "larger class / loss | 0.7" in text
    assert "larger class / loss / a" not in text  # nothing published is about it
    about = "A paper, Table 0. Size: paper. Network: -. Commit: "
    command = "Command: `plumbline reproduce small --size paper`."
    assert any(one.startswith(about) and one.endswith(command) for one in text.splitlines())
    for line in (
        "## A small table",
        "| new / loss | 0.4 | 0.4 ± 0.012 | 0.35 ± 0.012 |",
        "| new | reproduced |",
        "| new is slow | reproduced in direction only | new / time less 2.0 | holds in direction "
        "| 1 (0.95 to 1.05) |  |",
        "|  |  | base / loss against 2 times new / loss | holds in direction "
        "| -0.05 (-0.199 to 0.099) |  |",
        "| new / time | 3 ± 0.012 |  |",
        "- A note of the paper's.",
        "- seeds [0, 1, 2]",
    ):
        assert line in text.splitlines(), line
    row = "| A paper, Table 0: new is slow | reproduced in direction only | 1 (0.95 to 1.05) |"
    assert any(line.startswith(row) for line in summary([found]).splitlines())


def test_what_is_kept_is_judged_alike(judged: Any, tmp_path: Path) -> None:
    found = judged(ROWS + CLAIM, {**HOLDS, **NEAR, **NEAR_NEW}, {"new / loss": 0.35})
    again = read_reproduction(tmp_path / "runs" / "small-paper" / RESULT)
    assert section(again) == section(found)
    assert again.commits == (commit(),)


def test_later_parts_replace_earlier_ones(judged: Any, tmp_path: Path) -> None:
    judged(ROWS, {**NEAR, **NEAR_NEW})
    path = tmp_path / "runs" / "small-paper" / RESULT
    stored = json.loads(path.read_text())
    newer = {"base / loss": {"mean": 0.5, "standard_error": 0.1, "runs": 4}}
    part = {"commits": ["abc"], "paper": newer, "tuned": {}, "aim": "loss", "notes": ["later"]}
    path.write_text(json.dumps({**stored, "parts": [*stored["parts"], part]}))
    found = read_reproduction(path)
    assert found.measurements.paper["base / loss"].mean == 0.5
    assert found.measurements.paper["new / loss"].mean == pytest.approx(0.4)
    assert "abc" in found.commits
    assert (found.measurements.aim, found.measurements.notes) == ("loss", ("later",))


def test_a_part_may_add_seeds(judged: Any, tmp_path: Path) -> None:
    """The mean and its error are those of all seeds together."""
    first = judged(ROWS, {**NEAR, **NEAR_NEW}).measurements.paper["base / loss"]
    path = tmp_path / "runs" / "small-paper" / RESULT
    stored = json.loads(path.read_text())
    newer = {"base / loss": {"by_seed": {"7": 0.5, "8": 0.9}}}
    part = {"commits": ["abc"], "paper": newer, "tuned": {}, "aim": "loss", "notes": []}
    path.write_text(
        json.dumps({**stored, "parts": [*stored["parts"], {**part, "more_seeds": True}]})
    )
    found = read_reproduction(path).measurements.paper["base / loss"]
    values = [*first.by_seed.values(), 0.5, 0.9]
    assert found.by_seed == {**first.by_seed, "7": 0.5, "8": 0.9}
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.standard_error == pytest.approx(statistics.stdev(values) / 5**0.5)
    assert found.runs == 5


def test_the_best_of_a_sweep_is_chosen_by_all_seeds(tmp_path: Path) -> None:
    """A seed that is added may make another row the best; reductions of errors follow."""

    def part(**accuracies: dict[str, float]) -> dict[str, Any]:
        kept = {f"{row} / accuracy": {"by_seed": own} for row, own in accuracies.items()}
        return {"commits": ["abc"], "paper": kept, "tuned": {}, "aim": "accuracy", "notes": []}

    low, high = "DP-SAT, radius 0.01", "DP-SAT, radius 0.1"
    first = part(**{low: {"0": 82.0}, high: {"0": 81.0}, "DP-SGD": {"0": 80.0}})
    first["paper"]["DP-SAT, best / accuracy"] = first["paper"][f"{low} / accuracy"]
    more = part(**{low: {"1": 80.0}, high: {"1": 90.0}, "DP-SGD": {"1": 80.0}})
    stored = {"name": "002-table-2-mnist", "size": "answer"}
    path = tmp_path / "kept.json"
    for parts, best, avoided in (
        ([first], {"0": 82.0}, None),
        ([first, {**more, "more_seeds": True}], {"0": 81.0, "1": 90.0}, {"0": 5.0, "1": 50.0}),
    ):
        path.write_text(json.dumps({**stored, "parts": parts}))
        found = read_reproduction(path).measurements.paper
        assert found["DP-SAT, best / accuracy"].by_seed == best
        reduction = found.get("DP-SAT, best / error reduction")
        assert (reduction and reduction.by_seed) == avoided


def test_a_table_may_be_read_from_the_runs_of_another(
    judged: Any, papers: Path, tmp_path: Path
) -> None:
    """It has a title and claims of its own, and all else from there: runs are made once."""
    judged(ROWS, {**NEAR, **NEAR_NEW})
    (papers / "table.toml").write_text('title = "The table"\nsame_runs = "small"\n')
    (papers / "table.published.toml").write_text(HEAD + ROWS + CLAIM)
    found = reproduce("table", "quick", tmp_path / "runs")
    assert found.plan.title == "The table"
    assert found.folder == str(tmp_path / "runs" / "small-quick")
    assert found.measurements.notes == ("seeds [0]",)
    assert (tmp_path / "runs" / "table-quick" / RESULT).is_file()
    (papers / "table.toml").write_text('title = "The table"\nsame_runs = "smal"\n')
    with pytest.raises(RecipeError, match="small"):
        reproduce("table", "quick", tmp_path / "runs")


def test_all_that_fit_go_seed_by_seed(judged: Any, papers: Path, tmp_path: Path) -> None:
    judged(ROWS, NEAR)
    for name, priority in (("later", 9), ("first", 1)):
        (papers / f"{name}.toml").write_text(f"priority = {priority}\n{PLAN}")
        (papers / f"{name}.published.toml").write_text(
            (papers / "small.published.toml").read_text()
        )
    made = [(one.name, one.measurements.notes) for one in reproduce_all("paper", 1.0, tmp_path)]
    seeds = [(f"seeds {[0, 1, 2][:count]}",) for count in (1, 2, 3)]
    assert made == [(name, one) for name in ("first", "small", "later") for one in seeds]
    assert list(reproduce_all("paper", 0.0, tmp_path)) == []
    assert list(reproduce_all("answer", 1.0, tmp_path)) == []


def test_names_are_known_or_refused(judged: Any, papers: Path, tmp_path: Path) -> None:
    judged(ROWS, NEAR)
    assert names() == ["small"]
    with pytest.raises(RecipeError, match="Did you mean 'small'"):
        reproduce("smal")
    with pytest.raises(RecipeError, match="size is 'large'"):
        reproduce("small", "large")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="small has no size 'answer'; it has quick, paper"):
        reproduce("small", "answer")
    (papers / "small.toml").write_text(PLAN.replace("fake", "comparisons"))
    with pytest.raises(RecipeError, match="Did you mean 'comparison'"):
        reproduce("small", folder=tmp_path)


SMALL = """
title = "Small Adult"
study = "comparison"
minutes = { quick = 0.1, paper = 0.1 }
[settings]
name = "small"
seeds = [0, 1]
log_every = 100
data = { name = "adult" }
model = { name = "adult-mlp", options = { hidden = 8 } }
budget = { noise_multiplier = 1.0, delta = 1e-6, steps = 4, expected_batch_size = 64 }
optimizer = { learning_rate = 0.1 }
probe = { every = 2, records = 32, measure = ["progress", "excessive_risk"] }
[[settings.methods]]
name = "nonprivate"
origin = "paper"
[[settings.methods]]
name = "dpsgd"
label = "DPSGD"
origin = "paper"
[[settings.methods]]
name = "dpsgd"
label = "DPSGD"
origin = "tuned"
learning_rate = 1.0
[quick]
seeds = [0]
"""
SMALL_PUBLISHED = """
source = "Nowhere"
[tolerance]
accuracy = 100.0
loss = 10.0
"privacy cost gap" = 100.0
[[rows]]
row = "DPSGD"
values = { "accuracy / male" = 50.0, "privacy cost gap" = 1.0, "loss / female" = 1.0 }
[[claims]]
says = "there is a gradient"
above = [["DPSGD / progress / gradient_norm_by_group / male", -99.0, 0.0]]
[[claims]]
says = "there is noise"
above = [["DPSGD / excessive_risk / female / noise", -1.0, 0.0]]
"""


def test_a_small_table_end_to_end(papers: Path, tmp_path: Path) -> None:
    (papers / "small.toml").write_text(SMALL)
    (papers / "small.published.toml").write_text(SMALL_PUBLISHED)
    found = reproduce("small", "paper", tmp_path / "runs", workers=1)
    assert found.rows == {"DPSGD": PaperVerdict.REPRODUCED}
    assert [one.verdict for one in found.claims.values()] == [PaperVerdict.REPRODUCED] * 2
    paper, tuned = found.measurements.paper, found.measurements.tuned
    assert "nonprivate / accuracy / female" in paper
    assert not any(key.startswith("nonprivate") for key in tuned)
    assert not any("records" in key or "step" in key for key in paper)
    for line in found.values:
        assert line.ours is not None
        assert line.tuned is not None
        assert len(line.ours.folders) == 2
        for folder in line.ours.folders:
            assert (tmp_path / "runs" / "small-paper" / folder / "result.json").is_file()
    gap, costs = (
        paper["DPSGD / privacy cost gap"],
        [paper[f"DPSGD / privacy cost / {group}"].mean for group in ("male", "female")],
    )
    assert gap.mean == pytest.approx(abs(costs[0] - costs[1]))
    # Again: nothing is repeated.
    before = sorted((tmp_path / "runs").rglob("result.json"))
    times = [path.stat().st_mtime_ns for path in before]
    again = reproduce("small", "paper", tmp_path / "runs", workers=1)
    assert section(again) == section(found)
    assert [path.stat().st_mtime_ns for path in before] == times
    quick = reproduce("small", "quick", tmp_path / "runs", workers=1)
    assert len(quick.values[0].ours.folders) == 1  # type: ignore[union-attr]
