"""Folders as a comparison leaves them behind, with numbers made up by a formula: no training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plumbline.diagnostics import NOT_COVERED
from plumbline.experiments import Recipe, RunSpec
from tests.experiments.small import fields

METHODS = [
    {"name": "nonprivate"},
    {"name": "dpsgd", "settings": {"clip": 0.5}},
    {"name": "global-adapt", "label": "adapt", "learning_rate": 0.2},
]
ACCURACY = {"nonprivate": 0.85, "dpsgd": 0.78, "adapt": 0.83}
GROUPS = ("male", "female")


def comparison(
    folder: Path,
    *,
    methods: Sequence[Mapping[str, Any]] = METHODS,
    seeds: Sequence[int] = (0, 1),
    accuracy: Mapping[str, float] = ACCURACY,
    groups: Sequence[str] = GROUPS,
    readings: bool = True,
    tuning: bool = False,
    baseline: str | None = "dpsgd",
    kept: Mapping[str, float] | None = None,
    added: Mapping[str, float] | None = None,
    epsilons: Sequence[float] = (),
) -> Path:
    """A comparison's folder; a method's accuracy, and what is added to its loss, by its title."""
    changes: dict[str, Any] = {"methods": list(methods), "seeds": list(seeds), "name": "made"}
    if epsilons:
        length = {"steps": 10, "expected_batch_size": 32}
        budget = {"epsilon": epsilons[0], "delta": 1e-5, **length}
        changes |= {"epsilons": list(epsilons), "budget": budget}
    recipe = Recipe.of(fields(baseline=baseline, **changes))
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "recipe.json", recipe.model_dump(mode="json"))
    for method in recipe.rows:
        for seed in seeds:
            spec = RunSpec(recipe, method, seed)
            share = accuracy.get(method.title, 0.8)
            left = (kept or {}).get(method.title)
            extra = (added or {}).get(method.title, 0.0)
            one(folder / spec.folder, spec, share, groups, readings, left, extra)
    if tuning:
        trials = [
            {
                "method": "dpsgd",
                "learning_rate": rate,
                "settings": {"clip": 0.5},
                "score": 0.4 + math.log10(rate) ** 2 / 20,
                "folder": "trials/0",
            }
            for rate in (0.01, 0.1, 1.0, 10.0)
        ]
        told = {"objective": "loss", "trials": trials, "not_covered": "trials are not charged"}
        write(folder / "tuning.json", told)
    return folder


def one(
    folder: Path,
    spec: RunSpec,
    share: float,
    groups: Sequence[str],
    readings: bool,
    kept: float | None,
    extra: float = 0.0,
) -> None:
    """A run's folder."""
    folder.mkdir()
    free = spec.method.name == "nonprivate"
    own = share + 0.002 * spec.seed

    def report(scale: float) -> dict[str, Any]:
        by_group = {
            group: {"accuracy": scale * (own + 0.02 * place), "loss": 1.2 + extra - scale * own}
            for place, group in enumerate(groups)
        }
        return {
            "overall": {"accuracy": scale * own, "loss": 1.2 + extra - scale * own},
            "by_group": by_group,
        }

    result = {
        "method": spec.method.title,
        "seed": spec.seed,
        "delta": spec.recipe.budget.delta,
        "noise_multiplier": 1.0,
        "model": {"name": spec.model.name, "options": {}},
        "settings": spec.method.settings,
        "epsilon": "inf" if free else 3.4,
        "steps": 10,
        "seconds": 1.5,
        "statement": "No guarantee." if free else STATEMENT,
        "folder": spec.folder,
        "report": {**report(1.0), "sizes": dict.fromkeys(groups, 500), "minimum_size": 30}
        | {"reliability": [{"predicted": 0.2, "observed": 0.3, "records": 500}]},
    }
    write(folder / "recipe.json", {**spec.facts, "name": spec.recipe.name})
    write(folder / "versions.json", {"plumbline": "0", "python": "3.11"})
    write(folder / "result.json", result)
    rows = [
        {
            "step": step,
            "epsilon": "inf" if free else 0.34 * step,
            "seconds": 1.0,
            **report(step / 10),
        }
        for step in (5, 10)
    ]
    lines(folder / "metrics.jsonl", rows)
    if readings:
        bends = [reading(step, free, groups, kept or 0.25) for step in (5, 10)]
        lines(folder / "diagnostics.jsonl", [{"label": NOT_COVERED}, *bends])
        write(folder / "final.json", FINAL)


def reading(step: int, free: bool, groups: Sequence[str], kept: float) -> dict[str, Any]:
    """A reading of every measurement."""
    kept, away = (1.0, 0.0) if free else (kept, 0.2)
    bent = {
        "gradient_norm": 2.0,
        "magnitude": kept,
        "relative_direction": away,
        "cosine": kept / math.hypot(kept, away),
        "norm": 2.0 * math.hypot(1 - kept, away),
        "relative": math.hypot(1 - kept, away),
    }
    edges = [2.0**power for power in range(-3, 4)]
    counts = [1, 4, 9, 9, 4, 1]
    risk = {"magnitude": 0.01, "direction": 0.02, "noise": 0.001}
    return {
        "step": step,
        "epsilon": "inf" if free else 0.34 * step,
        "records": 28,
        "bias": {**bent, "by_group": dict.fromkeys(groups, bent)},
        "errors": {"bias": 0.5, "noise": "undefined: no" if free else 0.4, "sampling": 0.1},
        "norms": {
            "quantiles": {"0.05": 0.2, "0.25": 0.5, "0.5": 1.0, "0.75": 2.0, "0.95": 5.0},
            "clipped": 0.0 if free else 0.5,
            "clip": None if free else 0.5,
            "histogram": {
                "edges": edges,
                "counts": {"all": counts, **dict.fromkeys(groups, counts)},
            },
        },
        "symmetry": {
            "bias": "undefined: no" if free else -0.1,
            "cosine_p_value": 0.03,
            "cosines": {"edges": [-1.0, -0.5, 0.0, 0.5, 1.0], "counts": [2, 5, 15, 6]},
            "plane": {
                "steps": [-1.0, 0.0, 1.0],
                "counts": [[1, 2, 1], [3, 12, 2], [1, 4, 2]],
                "true_gradient": [0.4, -0.2],
                "outside": 0,
            },
        },
        "progress": {
            "loss": 0.7,
            "gradient_norm": 2.0,
            "loss_by_group": dict.fromkeys(groups, 0.7),
            "gradient_norm_by_group": dict.fromkeys(groups, 1.0),
        },
        "excessive_risk": dict.fromkeys(groups, risk),
        "hessian": {"all": 3.0, **dict.fromkeys(groups, 4.0)},
        "successive_cosines": {"clipped": 0.9, "released": "undefined: no"},
        "<loudest>": 3.0,
    }


FINAL = {
    "label": NOT_COVERED,
    "records": 28,
    "spectrum": {"largest": [3.0, 2.0, 1.0], "smallest": -0.1, "ratio": "undefined: too few"},
    "interpolation": {"positions": [0.0, 0.5, 1.0], "losses": [2.0, "undefined: no", 1.0]},
    "depth": {"of": {"it": 3, "none": "undefined: no"}},
    "density": {"values": [-0.1, 0.0, 3.0], "weights": [0.1, 0.8, 0.1]},
    "landscape": {
        "steps": [-1.0, 0.0, 1.0],
        "losses": [[3, 2, 3], [2, 1, 2], [3, 2, "undefined: no"]],
    },
}

STATEMENT = """This training run protects every record: it is differentially private with
epsilon = 3.40 and delta = 0.00001.

What this means. Little can be learnt.

How training works. In steps.

This is trusted:
- nothing else was released

What is covered:
- the model

What is not covered:
- the means and standard deviations of
  age
- <b>diagnostics</b>
"""


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
