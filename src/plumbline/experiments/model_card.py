"""A model card from a verified run: the statement, the metrics by group, and how to repeat it.

Markdown with YAML front matter, as the Hugging Face hub reads it. Everything in it comes from the
run's files and from its verification; a run with a contradiction gets none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from plumbline.experiments.verification import CONTRADICTED, NEVER, UNKNOWN, Verification
from plumbline.fairness import NOT_COVERED
from plumbline.formats import number
from plumbline.mechanism.rounding import rounded_up
from plumbline.mechanism.statement import GIVEN

_METRICS = ("accuracy", "loss", "balanced accuracy", "calibration error")


_SCHEMA: dict[Any, str] = {
    "from the data": f" **{GIVEN}**",
    "found privately": " It includes what it cost to find the table's ranges, categories and "
    "number of records, as far as they were not declared.",
    "declared": " The table's ranges, categories and classes were declared, and are taken to be "
    "public.",
}


class NoCard(RuntimeError):
    """A run that no card is written for, and why."""


def model_card(found: Verification) -> str:
    """The card of a finished run.

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
    sections = [
        f"---\n{_front_matter(found)}---",
        f"# {_title(found)}",
        _summary(found),
        "## Privacy statement\n\n```text\n" + claim.result["statement"].strip() + "\n```",
        f"## Metrics by group\n\n{_by_group(claim.result['report'])}\n\n({NOT_COVERED}.)",
        f"## Settings and how to repeat it\n\n{_repeat(found)}",
        f"## What was verified\n\n{_verified(found)}",
    ]
    return "\n\n".join(sections) + "\n"


def _title(found: Verification) -> str:
    return f"{found.claim.spec.name}, on {_dataset(found)}"


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
    return (
        f"Trained with differential privacy: **epsilon = {rounded_up(epsilon)} at delta = "
        f"{found.claim.budget.delta:g}**, derived again from the run's ledger.{schema}{seeded}"
    )


def _front_matter(found: Verification) -> str:
    """YAML of which every value is JSON, which YAML includes."""
    result = found.claim.result
    assert result is not None
    overall = result["report"]["overall"]
    named = {name: overall[name] for name in _METRICS if isinstance(overall.get(name), float)}
    dataset = _dataset(found)
    entry = {
        "task": {"type": "other", "name": "classification"},
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
        "metrics": [name.replace(" ", "_") for name in named],
        "model-index": [{"name": _title(found), "results": [entry]}],
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())


def _by_group(report: Mapping[str, Any]) -> str:
    lines: dict[str, Mapping[str, Any]] = dict(report["by_group"])
    sizes = dict(report["sizes"])
    if list(lines) != ["all"]:
        lines["all"], sizes["all"] = report["overall"], sum(sizes.values())
    kept = [name for name in report["overall"] if isinstance(report["overall"][name], float)]
    rows = [["group", "records", *kept], ["---"] * (len(kept) + 2)]
    for group, values in lines.items():
        rows.append(
            [_cell(group), f"{sizes[group]:,}", *(number(values[one], digits=4) for one in kept)]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _repeat(found: Verification) -> str:
    """The settings as a recipe."""
    spec = found.claim.spec
    recipe = spec.recipe.model_copy(update={"seeds": (spec.seed,)}).toml().strip()
    return (
        "As `recipe.toml`; then `plumbline train recipe.toml` makes the run again, and `plumbline "
        f"verify` compares:\n\n```toml\n{recipe}\n```"
    )


def _verified(found: Verification) -> str:
    rows = ["| what | outcome | found |", "| --- | --- | --- |"]
    rows += (f"| {one.what} | {one.outcome} | {_cell(one.words)} |" for one in found.checks)
    return "\n".join([*rows, "", *_limits(found)])


def _limits(found: Verification) -> Iterator[str]:
    if found.of(UNKNOWN):
        yield "What is not confirmed is not known to be wrong: it could not be checked.\n"
    yield "No file can confirm:\n"
    yield from (f"- {item}" for item in NEVER)


def _cell(text: str) -> str:
    """Text that stays within its cell."""
    return " ".join(text.replace("|", "\\|").split())
