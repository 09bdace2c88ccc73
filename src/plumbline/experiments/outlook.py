r"""What a table of a given size can hope for at an epsilon: a look ahead that needs no data.

Over a run of T steps with batches of L expected records, the noise on the mean of all clipped
gradients has about the length ``sigma C sqrt(p) / (L sqrt T)`` for p parameters. That of n records
would differ by up to ``C / sqrt(n)`` had other people been drawn: the sampling error that there is
without privacy too. Their quotient, ``sigma sqrt(p n) / (L sqrt T)``, says which of the two limits
the model. It is a rule of thumb: gradients are shorter than C, and the steps differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from plumbline.data.table_plan import TEST_FRACTION, plan_table
from plumbline.experiments.private_schema import SchemaQuestion
from plumbline.mechanism.calibration import Plan
from plumbline.models import build

_LITTLE, _MUCH = 0.5, 2.0
_GAP = 0.05  # the gap between two groups whose size is told, a share
_SURE = 1.96  # standard errors


@dataclass(frozen=True)
class Outlook:
    """What to expect of a table.

    Attributes:
        parameters: How many numbers each network has, by its name.
        ratio: The noise of a whole run in units of the data's own sampling error, by network.
        category: How many rows a category, class or group must have to be found privately.
        group: How many rows a group must have for a gap of 5 points to be told from chance.
    """

    parameters: dict[str, int]
    ratio: dict[str, float]
    category: int
    group: int

    def words(self) -> list[str]:
        """Sentences for people."""
        said = [
            f"For the {name} ({self.parameters[name]:,} numbers), the noise of the whole run is "
            f"{ratio:.2g} times what would change had as many other people been in the table: "
            f"{_judged(ratio)}."
            for name, ratio in self.ratio.items()
        ]
        said.append(
            f"Of columns that are not declared, a category, class or group is found if some "
            f"{_rounded(self.category)} training rows have it; rarer ones count as 'other'."
        )
        said.append(
            f"A gap of {100 * _GAP:g} points between two groups can be told from chance if each "
            f"has some {_rounded(self.group)} rows, of which a fifth is tested on."
        )
        return said


def outlook(plan: Plan, records: int, columns: int) -> Outlook:
    """What to expect of a table with so many training records and columns to learn from.

    Args:
        plan: The budget, resolved for plain DP-SGD.
        records: How many training records there are.
        columns: How many columns, as if each were a number.
    """
    networks = {"linear model": "linear", "default network": "mlp"}
    parameters = {
        title: sum(p.numel() for p in build(name, features=columns, classes=2).parameters())
        for title, name in networks.items()
    }
    scale = plan.noise_multiplier / (plan.expected_batch_size * math.sqrt(plan.steps))
    ratio = {name: scale * math.sqrt(count * records) for name, count in parameters.items()}
    frame = pd.DataFrame({str(place): [0] for place in range(columns + 1)})
    question = SchemaQuestion.about(
        plan_table(frame, target="0"), epsilon=plan.epsilon, delta=plan.delta
    )
    assert question is not None  # nothing of this table is declared
    tested = math.ceil(2 * 0.25 * (_SURE / _GAP) ** 2)
    return Outlook(
        parameters=parameters,
        ratio=ratio,
        category=math.ceil(question.threshold("1", max(1, columns // 2))),
        group=math.ceil(tested / TEST_FRACTION),
    )


def _judged(ratio: float) -> str:
    if ratio < _LITTLE:
        return "privacy will hardly be felt"
    if ratio < _MUCH:
        return "privacy costs about as much as having no more records"
    return "privacy will be felt; more records, a larger epsilon or a smaller network help"


def _rounded(count: int) -> str:
    return f"{float(f'{count:.2g}'):,.0f}"
