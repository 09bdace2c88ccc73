"""A model card from a verified run: the statement, the metrics by group, and how to repeat it.

Markdown with YAML front matter, as the Hugging Face hub reads it. Everything in it comes from the
run's files and from its verification; a run with a contradiction gets none. The card of an exported
model leaves the house: it has no path, no seed, and metrics only on request.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plumbline.experiments.deciding import threshold_words
from plumbline.experiments.run_result import read_report
from plumbline.experiments.table_remarks import table_remarks
from plumbline.experiments.verification import CONTRADICTED, NEVER, UNKNOWN, Verification
from plumbline.fairness import NOT_COVERED, remarks
from plumbline.fairness.evaluating import BY_NAME
from plumbline.formats import cell, fenced, markdown, number
from plumbline.mechanism.rounding import rounded_up
from plumbline.mechanism.statement import GIVEN

CARD = "README.md"
"""What the hub calls the file."""

_NO_METRICS = (
    "Left out: they are exact figures of held-out records, which epsilon does not cover. Whoever "
    "has the run can add them (`plumbline export --with-metrics`)."
)
_SCHEMA: dict[Any, str] = {
    "from the data": f" **{GIVEN}**",
    "found privately": " It includes what it cost to find the table's ranges, categories and "
    "number of records, as far as they were not declared.",
    "declared": " The table's ranges, categories and classes were declared, and are taken to be "
    "public.",
}
_NAMES = ("target", "sensitive", "separator")  # options of a table that are no paths
_TUNED = (
    " Its settings were tuned on the same records: this epsilon counts neither the runs that were "
    "made for that, nor what the settings below tell of them."
)


class NoCard(RuntimeError):
    """A run that no card is written for, and why."""


def model_card(found: Verification, *, metrics: bool = True, use: str | None = None) -> str:
    """The card of a finished run.

    Args:
        found: The run, verified.
        metrics: Whether its metrics are on the card, which epsilon does not cover.
        use: Of an exported model: how it is used, in Markdown.

    Raises:
        NoCard: If it is not finished, or something about it is contradicted.
    """
    claim = found.claim
    if claim.result is None:
        raise NoCard(f"No card: the run in {claim.folder} is not finished.")
    if wrong := found.of(CONTRADICTED):
        raise NoCard(
            f"No card: of the run in {claim.folder}, {wrong[0].what} is contradicted "
            f"({wrong[0].words})."
        )
    exported = use is not None
    title = f"{claim.spec.method.title if exported else claim.spec.name}, on {_dataset(found)}"
    measured = f"{_by_group(claim.result['report'])}\n\n{_remarks(found)}"
    sections = [
        f"---\n{_front_matter(found, title, metrics)}---",
        f"# {cell(title)}",
        _summary(found),
        *([f"## How to use it\n\n{use}"] if exported else []),
        f"## Privacy statement\n\n{fenced(claim.result['statement'], 'text')}",
        f"## Metrics by group\n\n{measured if metrics else _NO_METRICS}",
        f"## Settings{'' if exported else ' and how to repeat it'}\n\n{_settings(found, exported)}",
        f"## What was verified\n\n{_verified(found)}",
    ]
    return "\n\n".join(sections) + "\n"


def _dataset(found: Verification) -> str:
    return found.claim.spec.data.title


def _summary(found: Verification) -> str:
    epsilon = found.epsilon
    if epsilon is None:
        return "Epsilon could not be confirmed: see what was verified, below."
    if math.isinf(epsilon):
        return "**This model has no differential privacy guarantee**: its statement says why."
    seeded = (
        " The run was seeded: whoever knows the seed can remove the noise, so **do not publish "
        "this model as private**."
        if found.claim.spec.random_seed is not None
        else ""
    )
    result = found.claim.result or {}
    schema = _SCHEMA.get(result.get("schema"), "")
    tuned = _TUNED if found.claim.spec.method.origin == "tuned" else ""
    return (
        f"Trained with differential privacy: **epsilon = {rounded_up(epsilon)} at delta = "
        f"{found.claim.budget.delta:g}**, derived again from the run's ledger."
        f"{schema}{tuned}{seeded}"
    )


def _front_matter(found: Verification, title: str, metrics: bool) -> str:
    """YAML of which every value is JSON, which YAML includes."""
    result, data = found.claim.result, found.claim.spec.data
    assert result is not None
    task = "regression" if data.numeric_target else "classification"
    kind = f"tabular-{task}" if data.name == "table" else "other"
    overall = result["report"]["overall"]
    named = {
        name: value
        for name, value in overall.items()
        if metrics and isinstance(value, float) and BY_NAME[name].better is not None
    }
    dataset = _dataset(found)
    entry = {
        "task": {"type": kind, "name": task},
        "dataset": {"name": dataset, "type": dataset},
        "metrics": [
            {"type": name.replace(" ", "_"), "name": name, "value": value}
            for name, value in named.items()
        ],
    }
    fields: dict[str, Any] = {
        "library_name": "plumbline",
        "tags": ["differential-privacy", "dp-sgd", "pytorch", "plumbline"],
        "datasets": [dataset],
    }
    if kind != "other":
        fields["pipeline_tag"] = kind
    if named:
        fields["metrics"] = [name.replace(" ", "_") for name in named]
        fields["model-index"] = [{"name": title, "results": [entry]}]
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())


def _by_group(report: Mapping[str, Any]) -> str:
    lines: dict[str, Mapping[str, Any]] = dict(report["by_group"])
    sizes = dict(report["sizes"])
    if list(lines) != ["all"]:
        lines["all"], sizes["all"] = report["overall"], sum(sizes.values())
    kept = [name for name in report["overall"] if isinstance(report["overall"][name], float)]
    rows = [
        [cell(group), f"{sizes[group]:,}", *(number(values[one], digits=4) for one in kept)]
        for group, values in lines.items()
    ]
    return markdown(["group", "records", *kept], rows)


def _remarks(found: Verification) -> str:
    """What the metrics come to, as after training."""
    result = found.claim.result
    assert result is not None
    try:
        said = remarks(read_report(result["report"]))
        if (threshold := result.get("threshold")) is not None:
            chosen = found.claim.spec.chosen_on > 0
            said.insert(0, threshold_words(threshold, result["classes"], chosen=chosen))
        classes = result.get("classes", ())
        said += table_remarks(found.claim.spec.data, result.get("rows"), classes)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NoCard(
            f"No card: the metrics in {found.claim.folder / 'result.json'} cannot be read."
        ) from error
    return "\n\n".join([*map(cell, said), f"({NOT_COVERED}.)"])


def _settings(found: Verification, exported: bool) -> str:
    """The settings as a recipe; in an export without the folders and the seed."""
    spec = found.claim.spec
    if exported:
        own = {
            name: Path(value).name
            if isinstance(value, str) and os.sep in value and name not in _NAMES
            else value
            for name, value in spec.data.options.items()
        }
        data = spec.data.model_copy(update={"options": own})
        row = spec.method.model_copy(update={"data": None})
        recipe = spec.recipe.model_copy(update={"data": data, "methods": (row,)})
        return fenced(recipe.toml(without=("seeds",)), "toml")
    recipe = spec.recipe.model_copy(update={"seeds": (spec.seed,)})
    return (
        "As `recipe.toml`; then `plumbline train recipe.toml` makes the run again, and `plumbline "
        f"verify` compares:\n\n{fenced(recipe.toml(), 'toml')}"
    )


def _verified(found: Verification) -> str:
    rows = [[one.what, one.outcome, cell(one.words)] for one in found.checks]
    return "\n".join([markdown(["what", "outcome", "found"], rows), "", *_limits(found)])


def _limits(found: Verification) -> Iterator[str]:
    if found.of(UNKNOWN):
        yield "What is not confirmed is not known to be wrong: it could not be checked.\n"
    yield "No file can confirm:\n"
    yield from (f"- {item}" for item in NEVER)
