"""What to do next after a single run: three lines, each with a command."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from plumbline.experiments.files import ENCODING
from plumbline.experiments.objects import is_object
from plumbline.fairness.remarks import needs_threshold
from plumbline.report.reading import Study


class Step(NamedTuple):
    """Why, and the command."""

    why: str
    command: str


def next_steps(study: Study) -> list[Step]:
    """The three most useful next steps for a single run.

    The run's folder stands for its data and settings. What was a Python object cannot be named on a
    command line, so that such a run is only verified.
    """
    (run,) = study.runs[study.titles[0]]
    folder = shlex.quote(str(study.folder))
    found = []
    parts = (study.recipe.data.name, study.recipe.model.name, study.recipe.loss.name)
    if not any(is_object(name) for name in (*parts, study.recipe.methods[0].name)):
        if needs_threshold(run.result.report):
            found.append(
                Step(
                    "It ranks records, and its decisions do not show that: have a threshold "
                    "chosen, on rows that are kept apart.",
                    f"plumbline train {folder} --threshold auto",
                )
            )
        if not run.readings:
            found.append(
                Step("See whether clipping or noise holds it back.", f"plumbline diagnose {folder}")
            )
        found.append(
            Step(
                "Compare it with the model without privacy and with other methods, each tuned, at "
                "three epsilons.",
                f"plumbline compare {folder} --epsilon 1,3,8",
            )
        )
    if (study.folder / ENCODING).is_file():
        found.append(Step("Predict new rows.", f"plumbline predict {folder} --data NEW.csv"))
    found.append(Step("Check every claim before the model is shown.", f"plumbline verify {folder}"))
    return found[:3]
