"""Noise, its cost, and where the cost is recorded: from a step's queries to its statement.

The accountants (and with them dp-accounting and scipy) are imported when one of their names is
first used, so that charging a ledger or drawing noise does not wait for them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from plumbline.mechanism.release import (
    CyclicSampling,
    FullBatch,
    GaussianQuery,
    PoissonSampling,
    Query,
    StepRelease,
)

if TYPE_CHECKING:
    from plumbline.mechanism.accountant import EpsilonCurve, epsilon
    from plumbline.mechanism.calibration import Budget, BudgetError, Plan, calibrate_noise
    from plumbline.mechanism.statement import Statement

__all__ = [
    "Budget",
    "BudgetError",
    "CyclicSampling",
    "EpsilonCurve",
    "FullBatch",
    "GaussianQuery",
    "Plan",
    "PoissonSampling",
    "Query",
    "Statement",
    "StepRelease",
    "calibrate_noise",
    "epsilon",
]

_LATE = {
    "EpsilonCurve": "accountant",
    "epsilon": "accountant",
    "Budget": "calibration",
    "BudgetError": "calibration",
    "Plan": "calibration",
    "calibrate_noise": "calibration",
    "Statement": "statement",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(f"plumbline.mechanism.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
