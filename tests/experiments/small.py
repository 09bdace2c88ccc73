"""A recipe that runs in about a second, on bundled data."""

from typing import Any

from plumbline.experiments import Recipe


def fields(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "small",
        "seeds": [0, 1],
        "baseline": "dpsgd",
        "log_every": 5,
        "data": {"name": "adult"},
        "model": {"name": "adult-mlp"},
        "budget": {
            "noise_multiplier": 1.0,
            "delta": 1e-5,
            "steps": 10,
            "expected_batch_size": 32,
        },
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "methods": [
            {"name": "nonprivate"},
            {"name": "dpsgd", "settings": {"clip": 0.5}},
            {"name": "global-adapt", "label": "adapt", "learning_rate": 0.2},
        ],
    }
    return {**base, **changes}


def recipe(**changes: Any) -> Recipe:
    return Recipe.of(fields(**changes))
