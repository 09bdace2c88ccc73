"""The best private models we can train on two cores, beside what the papers report.

`python -m benchmarks.records [NAME ...]` makes the runs of recipes/records (five seeds each; what
is finished below runs/records is not repeated) and writes docs/records.md. What is to be reached
and the papers' figures at the same epsilon are in benchmarks/records.toml.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import record_search
from benchmarks.record_tasks import METHODS
from plumbline.experiments import ComparisonTable, Recipe, RunSpec, compare
from plumbline.experiments.loading import load_part
from plumbline.experiments.recipes import folder as recipes_folder
from plumbline.experiments.run_spec import budget_of
from plumbline.mechanism import epsilon

RECORDS = "records"
HEAD = """# Records on two cores

For each task the best private model that we train here: mean of five seeds and its standard error,
PLD accounting, delta 1e-5 (Adult and Dutch 1e-6). The papers account by RDP, which says a larger
epsilon of the same runs: it stands beside PLD's. "To reach" is what was set before; the papers'
figures are theirs at the same epsilon. The recipes are in `recipes/records`; this page is written
by `python -m benchmarks.records`. How settings were chosen is said in each recipe; epsilon does not
cover the choice.

"""
SEARCH = """
## How the settings of images and texts were found

By `python -m benchmarks.record_search`: linear models, and for every way of clipping, kind of
features and epsilon the same number of trials with the same draws. Each cell is the best accuracy
of its trials on 5,000 training records that were held out; a row's best is bold. How Adult's and
Dutch's settings were found is said in their recipes.

"""
TARGETS = Path(__file__).with_suffix(".toml")


def main() -> None:
    """Runs, prints, writes down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--out", type=Path, default=Path("runs") / RECORDS)
    options = parser.parse_args()
    root = recipes_folder() / RECORDS
    targets: dict[str, Any] = tomllib.loads(TARGETS.read_text())
    console = Console(width=140)
    results = Path(__file__).parent / "results" / "records.json"
    found = json.loads(results.read_text()) if results.is_file() else {}
    there = [name for name in targets if (root / f"{name}.toml").is_file()]
    for name in options.names if options.names or options.page else there:
        recipe = Recipe.read(root / f"{name}.toml")
        with console.status(name) as status:
            table = compare(
                recipe,
                options.out / name,
                on_progress=lambda p, s=status, n=name: s.update(
                    f"{n}: {p.done} of {p.total} runs"
                ),
            )
        found[name] = _measured(table, targets[name])
        console.print(name, found[name], highlight=False)
        results.write_text(json.dumps(found, indent=2) + "\n")
    for name in found:
        if "rdp" not in found[name]:
            found[name]["rdp"] = rdp_epsilon(Recipe.read(root / f"{name}.toml"))
            results.write_text(json.dumps(found, indent=2) + "\n")
    text = (
        _markdown(found, targets)
        + SEARCH
        + _searched(json.loads(record_search.RESULTS.read_text()))
    )
    (Path(__file__).parents[1] / "docs" / "records.md").write_text(HEAD + text, encoding="utf-8")
    console.print(text, highlight=False)


def rdp_epsilon(recipe: Recipe) -> float:
    """What RDP says of a recipe's first row, calibrated as the recipe says."""
    spec = RunSpec(recipe, recipe.methods[0], recipe.seeds[0])
    records = len(load_part(recipe.data.model_copy(update={"features": None}), spec.seed).train)
    method, part = spec.method.build(), recipe.budget
    plan = budget_of(spec, method, records).resolve(
        records, release_at=method.release, accountant=part.accountant, before=spec.before
    )
    releases = [*((one, 1) for one in plan.before), (plan.release, plan.steps)]
    return epsilon(releases, delta=plan.delta, accountant="rdp")


def _measured(table: ComparisonTable, target: dict[str, Any]) -> dict[str, Any]:
    """Each figure to be reached, measured; epsilon and the mean time of a run."""
    row = table.rows[0]
    values = {}
    for key in target["reach"]:
        metric, _, group = key.partition(" / ")
        estimate = (row.seeds.by_group[group] if group else row.seeds.overall)[metric]
        scale = 100 if metric == "accuracy" else 1
        values[key] = [scale * float(estimate.mean), scale * float(estimate.standard_error)]
    return {"epsilon": row.epsilon, "seconds": row.seconds, "values": values}


def _markdown(found: dict[str, Any], targets: dict[str, Any]) -> str:
    head = [
        "task",
        "epsilon",
        "by RDP",
        "figure",
        "ours (mean of 5 seeds)",
        "to reach",
        "papers",
        "s per run",
    ]
    lines = []
    for name, target in targets.items():
        if name not in found:
            continue
        one = found[name]
        for key, reach in target["reach"].items():
            mean, error = one["values"][key]
            digits = 1 if key.startswith("accuracy") else 3
            lines.append(
                [
                    name,
                    f"{one['epsilon']:.3g}",
                    f"{one['rdp']:.3g}",
                    key,
                    f"{mean:.{digits}f} ± {error:.{digits + 1}f}",
                    f"{reach:g}" if reach else "",
                    target.get("papers", {}).get(key, ""),
                    f"{one['seconds']:.0f}",
                ]
            )
    return _table(head, lines)


def _searched(rows: list[dict[str, Any]]) -> str:
    """The best of each cell: a line for a task, epsilon and features, a column for a method."""
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    trials: dict[tuple[str, ...], set[float]] = {}
    for row in rows:
        line = row["task"], f"{row['epsilon']:g}", row["features"]
        trials.setdefault(line, set()).add(row["reach"])
    for row in record_search.best(rows):
        line = row["task"], f"{row['epsilon']:g}", row["features"]
        cells.setdefault(line, {})[row["method"]] = row["accuracy"]
    lines = [
        [*line, str(len(trials[line])), *(_marked(found[name], found) for name in METHODS)]
        for line, found in sorted(cells.items())
    ]
    return _table(["task", "epsilon", "features", "trials", *METHODS], lines)


def _marked(value: float, among: dict[str, float]) -> str:
    return f"**{value:.2f}**" if value == max(among.values()) else f"{value:.2f}"


def _table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    main()
