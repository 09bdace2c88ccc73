"""Runs on a table with every kind of column, to be exported; and predict.py as others run it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import plumbline as pl

HEADER = "age,ward,smoker,diagnosis,code,admitted,note,grade,back,cost"
WORDS = ("mild", "severe", "pain", "fever", "stable", "Zürich", "night's")
KNOWN: dict[str, Any] = {
    "categories": {
        "ward": ["1", "2", "3"],
        "smoker": ["true", "false"],
        "diagnosis": ["E1", "I1", "J4"],
        "back": ["no", "yes"],
        "grade": ["low", "middle", "high"],
    },
    "ranges": {"age": [20, 90], "admitted": ["2020-01-01", "2023-01-01"], "cost": [0, 8000]},
    "dates": {"admitted": "dmy"},
    "prefixes": {"diagnosis": 2},
    "hashes": {"code": 8},
    "texts": {"note": 16},
    "fills": {"ward": "2"},
    "records": 320,
    "epochs": 2.0,
    "batch": 64,
    "epsilon": 8.0,
}


def patients(path: Path, count: int = 320, seed: int = 0) -> Path:
    """Numbers, categories, truth values, prefixes, codes, dates and text, with missing cells."""
    draw = random.Random(seed)
    lines = [HEADER]
    for _ in range(count):
        age = draw.randint(15, 95)
        cells = [
            str(age),
            draw.choice("1234"),
            draw.choice(["true", "false"]),
            draw.choice(["E11.9", "I10", "J45.0", "Z99"]),
            f"{draw.choice('XYZ')}{draw.randint(0, 99)}",
            f"{draw.randint(1, 28):02}.{draw.randint(1, 12):02}.{draw.randint(2019, 2023)}",
            " ".join(draw.choices(WORDS, k=3)),
        ]
        cells = [cell if draw.random() > 0.1 else "" for cell in cells]
        grade = ["low", "middle", "high"][min(2, age // 35)]
        cells += [grade, "yes" if age > 60 else "no", str(60 * age + draw.randint(0, 900))]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


CASES: dict[str, dict[str, Any]] = {
    "two classes": {"target": "back", "drop": ["grade", "cost"], "threshold": 0.4},
    "three classes": {"target": "grade", "drop": ["back", "cost"], "model": "linear"},
    "a number": {"target": "cost", "drop": ["grade", "back"], "model": "mlp=16"},
}


def trained(folder: Path, **options: Any) -> Path:
    """The folder of a run, whose noise is secure unless a seed is given; None leaves one out."""
    table, given = patients(folder / "patients.csv"), {**KNOWN, **options}
    given = {name: value for name, value in given.items() if value is not None}
    return pl.train(data=table, folder=folder / "runs", **given).folder


BLOCKED = ("plumbline", "pandas", "scipy", "pydantic", "sklearn", "typer", "dp_accounting")
"""What must not be needed."""


def run_script(
    export: Path, *arguments: str | Path, given: bytes = b"", path: str = "", block: Any = BLOCKED
) -> subprocess.CompletedProcess[bytes]:
    """Runs predict.py where modules cannot be imported, as on a machine that lacks them."""
    return subprocess.run(
        [sys.executable, export / "predict.py", *map(str, arguments)],
        input=given,
        capture_output=True,
        env=lacking(export.parent, path=path, block=block),
        check=False,
    )


def lacking(folder: Path, *, path: str = "", block: Any = BLOCKED) -> dict[str, str]:
    """The environment of a process in which modules cannot be imported."""
    site = folder / "lacking"
    site.mkdir(exist_ok=True)
    names = ", ".join(map(repr, block))
    code = f"import sys\nfor name in ({names},):\n    sys.modules[name] = None\n"
    (site / "sitecustomize.py").write_text(code)
    paths = os.pathsep.join(filter(None, [str(site), path]))
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
