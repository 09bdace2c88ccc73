"""A recipe that runs in about a second, on bundled data; one on images; and a run."""

from typing import Any

from plumbline.experiments import Recipe, RunSpec


def fields(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "small",
        "seeds": [0, 1],
        "baseline": "dpsgd",
        "log_every": 5,
        "data": {"name": "adult", "options": {"test_fraction": 0.02}},
        "model": {"name": "adult-mlp", "options": {"hidden": 8}},
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


def images(**changes: Any) -> Recipe:
    return recipe(data={"name": "mnist-8"}, model={"name": "fair-cnn-mnist"}, **changes)


def spec(method: int = 1, seed: int = 0, **changes: Any) -> RunSpec:
    one = recipe(**changes)
    return RunSpec(one, one.methods[method], seed)
