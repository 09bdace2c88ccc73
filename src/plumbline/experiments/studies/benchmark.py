"""Step-time ratios to plain DP-SGD, from the benchmark.

From Sharpness-Aware Training, Table 4; Bias-Aware Minimisation, Fig. 3.

``python -m benchmarks.methods`` measures and writes them; here they are read, since a measurement
beside other work would be none.
"""

from __future__ import annotations

import json
from pathlib import Path

from plumbline.experiments.recipe import RecipeError, SettingsPart
from plumbline.experiments.recipes import folder as recipes_folder
from plumbline.experiments.studies.base import (
    NOT_RECORDED,
    Job,
    Measured,
    Measurements,
    study,
)


class BenchmarkPart(SettingsPart):
    """What is taken from the benchmark's results.

    Attributes:
        methods: The paper's names of methods, to the benchmark's.
        models: What a column is called, to the benchmark's name of the network.
    """

    methods: dict[str, str]
    models: dict[str, str]


def results() -> Path:
    """Where the benchmark writes in a checkout; an installation has the file at the same place."""
    return recipes_folder().parent / "benchmarks" / "results" / "methods.json"


@study("benchmark")
def benchmark(job: Job) -> Measurements:
    """The median ratio of each method's step time to DP-SGD's."""
    part = job.checked(BenchmarkPart)
    path = results()
    if not path.is_file():
        raise RecipeError(
            f"There are no results at {path}. Run `python -m benchmarks.methods` in a checkout, "
            "with nothing else at work."
        )
    kept = json.loads(path.read_text(encoding="utf-8"))
    stored, machine, found = kept["models"], kept["machine"], {}
    for title, method in part.methods.items():
        for column, model in part.models.items():
            own = stored.get(model, {}).get(method, {})
            if "ratio" in own:
                found[f"{title} / step time / {column}"] = Measured(
                    own["ratio"], bounds=(own["low"], own["high"])
                )
    note = (
        f"Ratios to DP-SGD from {path.name}: medians of a race with their intervals at 95 %, on "
        f"{machine['processor']} with {machine['threads']} threads and torch {machine['torch']}."
    )
    made_with = machine.get("commit", NOT_RECORDED)
    return Measurements(found, notes=(note,), made_with=made_with)
