"""What audits find here: every method's step, planted bugs, and whole runs on Adult by group.

`python -m benchmarks.audit` makes the tables (about ten minutes on two busy cores; with `--quick`
in minutes, with fewer repetitions), keeps them as results/audit.json and results/audit.md, and puts
them into docs/audit.md. The planted bugs are those of the tests.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from plumbline.auditing import Membership, StepAudit, audit_step
from plumbline.experiments import Recipe, RunSpec
from plumbline.experiments.attacking import audit_recipe, averaged
from plumbline.fairness import to_json
from plumbline.methods import METHODS
from tests.auditing.planted import BUGS

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "audit.md"
BEGIN, END = "<!-- begin: python -m benchmarks.audit -->", "<!-- end -->"
SURE = 1 - 1e-6
ADULT: dict[str, Any] = {
    "name": "adult-by-group",
    "seeds": list(range(12)),
    "data": {"name": "adult"},
    "model": {"name": "adult-mlp"},
    "budget": {"epsilon": 8.0, "delta": 1e-5, "steps": 200, "expected_batch_size": 512},
    "optimizer": {"name": "adam", "learning_rate": 0.01},
    "methods": [
        {"name": "nonprivate", "label": "non-private"},
        {"name": "dpsgd", "label": "DPSGD", "settings": {"clip": 0.5}},
        {"name": "dpsgd_f", "label": "DPSGD-F", "settings": {"clip": 0.5}},
        {"name": "global_adapt", "label": "DPSGD-Global-Adapt", "settings": {"clip": 0.5}},
    ],
}
"""A tenth of the training records, and many passes over them: what can be learned by heart, is."""

HELD_OUT, CANARIES = 0.9, 1000


def main() -> None:
    """Audits, prints, writes down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, one seed")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="only these parts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=140)
    kept = RESULTS / "audit.json"
    found = json.loads(kept.read_text()) if kept.is_file() else {}
    for name in options.parts or PARTS:
        started = time.monotonic()
        found[name] = PARTS[name](options.quick)
        console.print(f"{name}: {time.monotonic() - started:.0f} s", highlight=False)
        kept.write_text(json.dumps(found, indent=2) + "\n")
    text = "\n".join(TABLES[name](found[name]) for name in PARTS if name in found)
    (RESULTS / "audit.md").write_text(text, encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
    console.print(text, highlight=False)


def plain_gaussian(quick: bool) -> list[dict[str, Any]]:
    """Sigma 1, no sampling: how much of epsilon each kind of bound reaches."""
    rows = []
    claimed = audit_step("dpsgd", repetitions=100, seed=0).claimed
    for confidence in (0.95, 0.999, SURE):
        bounds = [
            _answers_of_dpsgd(2000, confidence, seed).findings[0].bound.epsilon
            for seed in range(5 if quick else 50)
        ]
        how = f"Gaussian DP, mean of {len(bounds)} audits"
        row = {"how": how, "trials": 2000, "confidence": confidence}
        rows.append({**row, "epsilon": float(np.mean(bounds)), "claimed": claimed})
    for confidence in (0.95, SURE):
        audits = [
            _answers_of_dpsgd(300_000 if quick else 3_000_000, confidence, seed)
            for seed in range(2 if quick else 20)
        ]
        for place in (0, 1):
            bounds = [audit.findings[place].bound for audit in audits]
            how = f"{bounds[0].how}, mean of {len(bounds)} audits"
            row = {"how": how, "trials": bounds[0].trials, "confidence": confidence}
            mean = float(np.mean([bound.epsilon for bound in bounds]))
            rows.append({**row, "epsilon": mean, "claimed": claimed})
    return rows


def _answers_of_dpsgd(repetitions: int, confidence: float, seed: int) -> StepAudit:
    """With this confidence for either of the two bounds, by Gaussian DP and by counting."""
    return audit_step(
        "dpsgd",
        repetitions=repetitions,
        confidence=1 - 2 * (1 - confidence),
        statistics=("answers",),
        seed=seed,
    )


def methods(quick: bool) -> list[dict[str, Any]]:
    """Every named method's step."""
    count = 20_000 if quick else 200_000
    return [
        _row(name, audit_step(name, repetitions=count, seed=seed))
        for seed, name in enumerate(METHODS)
    ]


def bugs(quick: bool) -> list[dict[str, Any]]:
    """The planted bugs, with many repetitions where counting needs them."""
    rows = []
    for bug in BUGS:
        count = 10_000_000 if bug.name.startswith("counts") else 1_000_000
        more: dict[str, Any] = {"repetitions": count // 10 if quick else count, "seed": 0}
        if bug.name.startswith("counts"):
            more["statistics"] = ("answers",)
        rows.append(_row(bug.name, bug.audit(confidence=SURE, **more)))
    return rows


def adult(quick: bool) -> list[dict[str, Any]]:
    """Mislabelled canaries in small runs on Adult: one-run bounds, and membership by group."""
    recipe = Recipe.of(ADULT)
    rows = []
    for part in recipe.methods:
        found = [
            audit_recipe(RunSpec(recipe, part, seed, HELD_OUT), CANARIES)
            for seed in recipe.seeds[: 1 if quick else None]
        ]
        rows.append(
            {
                "method": part.title,
                "claimed": _number(found[0].claimed),
                "bounds": [one.found.bound.epsilon for one in found],
                "correct": [one.found.correct for one in found],
                "guesses": found[0].found.guesses,
                "lines": averaged([one.membership for one in found]),
                "gap": _gap([one.membership for one in found]),
            }
        )
    return rows


PARTS = {"plain": plain_gaussian, "methods": methods, "bugs": bugs, "adult": adult}


def _row(name: str, found: StepAudit) -> dict[str, Any]:
    return {
        "name": name,
        "claimed": _number(found.claimed),
        "moved": None if math.isnan(found.moved) else found.moved,
        "refuted": found.refuted,
        "reason": found.reason,
        "confidence": found.confidence,
        "findings": [asdict(finding) for finding in found.findings],
    }


def _gap(runs: Sequence[Membership]) -> list[float]:
    """The second group's AUC less the first one's, in each run."""
    return [
        float(np.diff([float(to_json(one.values["auc"])) for one in run.by_group.values()])[0])
        for run in runs
    ]


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


# What is shown


def _plain_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return "### The plain Gaussian mechanism: sigma 1, no sampling, delta 1e-5\n\n" + _markdown(
        ["bound by", "repetitions in each world", "confidence", "epsilon ≥", "claimed", "share"],
        (
            [
                row["how"],
                f"{row['trials']:,}",
                _sure(row["confidence"]),
                f"{row['epsilon']:.3f}",
                f"{row['claimed']:.3f}",
                f"{row['epsilon'] / row['claimed']:.0%}",
            ]
            for row in rows
        ),
    )


def _methods_table(rows: Sequence[Mapping[str, Any]]) -> str:
    audited = [row for row in rows if row["findings"]]
    others = ", ".join(row["name"] for row in rows if not row["findings"])
    best = [max(row["findings"], key=_share) for row in audited]
    most = max(_share(finding) for finding in best)
    head = ["method", "canary moves answers by", "epsilon ≥", "claimed", "share", "verdict"]
    lines = (
        [
            row["name"],
            f"{row['moved']:.3f} std",
            f"{finding['bound']['epsilon']:.3f}",
            f"{finding['claimed']:.3f}",
            f"{_share(finding):.1%}",
            "refuted" if row["refuted"] else "consistent",
        ]
        for row, finding in zip(audited, best, strict=True)
    )
    trials = f"{audited[0]['findings'][0]['bound']['trials']:,}"
    return (
        f"### Every named method: one step, sigma 1, no sampling, {trials} repetitions, "
        f"confidence {_sure(SURE)}\n\n"
        + _markdown(head, lines)
        + f"\nThe largest share is {most:.1%}. Without a guarantee, so with nothing to audit: "
        f"{others}.\n"
    )


def _bugs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "planted bug",
        "caught",
        "by",
        "epsilon ≥",
        "claimed",
        "by counting alone",
        "confidence",
    ]
    lines = []
    for row in rows:
        finding = max(row["findings"], key=_share)
        counted = [one for one in row["findings"] if one["bound"]["how"] == "Clopper-Pearson"]
        alone = max(counted, key=_share)
        lines.append(
            [
                row["name"],
                "yes" if row["refuted"] else "**no**",
                f"{finding['statistic']}, {finding['bound']['how']}",
                f"{finding['bound']['epsilon']:.3g}",
                f"{finding['claimed']:.3g}",
                f"{alone['bound']['epsilon']:.3g} of {alone['claimed']:.3g} "
                f"({alone['bound']['trials']:,} repetitions)",
                _sure(row["confidence"]),
            ]
        )
    return "### Planted bugs\n\n" + _markdown(head, lines)


def _adult_table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["method", "claimed", "epsilon ≥", "group", "AUC", "±", "accuracy"]
    head += [f"TPR at FPR {rate}" for rate in ("0.1%", "1%", "10%")] + ["AUC, female - male"]
    lines = []
    for row in rows:
        bounds = f"{np.mean(row['bounds']):.2f} ({max(row['bounds']):.2f})"
        for place, line in enumerate(row["lines"]):
            first = [row["method"], _shown(row["claimed"]), bounds] if place == 0 else ["", "", ""]
            gap = row["gap"]
            error = np.std(gap, ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else math.nan
            last = f"{np.mean(gap):+.3f} ± {error:.3f}" if place == 0 else ""
            lines.append([*first, *line, last])
    count = len(rows[0]["bounds"])
    return (
        f"### Whole runs on a tenth of Adult: {CANARIES:,} mislabelled canaries, {count} seeds\n\n"
        + _markdown(head, lines)
        + "\nepsilon ≥ is the one-run bound at confidence 0.95: the mean over seeds, and the "
        "largest. ± is half of the AUC's 95% interval in the first run. The last "
        "column is the groups' difference, mean over seeds and its standard error.\n"
    )


TABLES = {
    "plain": _plain_table,
    "methods": _methods_table,
    "bugs": _bugs_table,
    "adult": _adult_table,
}


def _share(finding: Mapping[str, Any]) -> float:
    return float(finding["bound"]["epsilon"] / finding["claimed"])


def _sure(confidence: float) -> str:
    return "1 - 1e-6" if confidence > 0.9999 else f"{confidence:g}"


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows) + "\n"


if __name__ == "__main__":
    main()
