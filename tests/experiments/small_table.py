"""A recipe on a table of one's own, with all of it declared, that runs in about a second."""

import random
from pathlib import Path
from typing import Any

from plumbline.experiments import Recipe, RunSpec


def patients(path: Path, count: int = 300, seed: int = 0) -> Path:
    """Numbers, categories and a code that hardly two rows share."""
    draw = random.Random(seed)
    lines = ["age,ward,code,died"]
    for _ in range(count):
        age, ward = draw.randint(18, 90), draw.choice(["east", "west"])
        died = "yes" if age + draw.gauss(0, 15) > 60 else "no"
        lines.append(f"{age},{ward},{draw.randrange(10**6)},{died}")
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(table: Path, **changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "name": "small",
        "seeds": [0],
        "noise": "secure",
        "data": {
            "table": str(table),
            "target": "died",
            "drop": ["code"],
            "ranges": {"age": [0, 100]},
            "categories": {"ward": ["east", "west"], "died": ["no", "yes"]},
            "records": 300,
        },
        "model": {"name": "mlp", "options": {"hidden": [4]}},
        "budget": {"epsilon": 3.0, "delta": 1e-5, "steps": 6, "expected_batch_size": 60},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "log_every": 10**6,
        "methods": [{"name": "dpsgd", "settings": {"clip": 0.5}}],
    }
    return Recipe.of({**fields, **changes})


def spec(table: Path, seed: int = 0, **changes: Any) -> RunSpec:
    made = recipe(table, **changes)
    return RunSpec(made, made.methods[0], seed)
