"""Who pays for privacy: metrics by group, what privacy costs each group, and how sure that is.

``evaluate`` computes one model's metrics by group, ``privacy_cost`` what private training costs
each group (Gradient Misalignment, Eqs. 1 and 2), ``across_seeds`` and ``compare_to`` the
uncertainty of training. ``to_json`` turns all of them into JSON. For the uncertainty of the test
set use the bootstrap of fairlearn's ``MetricFrame`` (docs/fairness.md).
"""

from plumbline.fairness.cost import Cost, CostByGroup, CostGap, cost_of_reports, privacy_cost
from plumbline.fairness.evaluating import NOT_COVERED, GroupReport, evaluate
from plumbline.fairness.features import UNKNOWN
from plumbline.fairness.gaps import Gap
from plumbline.fairness.groups import MINIMUM_SIZE, Groups, group_records
from plumbline.fairness.metrics import METRICS, Metric
from plumbline.fairness.outcomes import Outcomes
from plumbline.fairness.regression import NumberOutcomes
from plumbline.fairness.reliability import Bin
from plumbline.fairness.remarks import main_metric, remarks
from plumbline.fairness.seeds import Estimate, SeedReport, across_seeds, estimate
from plumbline.fairness.significance import PairedTest, SignificanceTests, compare_to, holm
from plumbline.results import Number, Undefined, to_json

__all__ = [
    "METRICS",
    "MINIMUM_SIZE",
    "NOT_COVERED",
    "UNKNOWN",
    "Bin",
    "Cost",
    "CostByGroup",
    "CostGap",
    "Estimate",
    "Gap",
    "GroupReport",
    "Groups",
    "Metric",
    "Number",
    "NumberOutcomes",
    "Outcomes",
    "PairedTest",
    "SeedReport",
    "SignificanceTests",
    "Undefined",
    "across_seeds",
    "compare_to",
    "cost_of_reports",
    "estimate",
    "evaluate",
    "group_records",
    "holm",
    "main_metric",
    "privacy_cost",
    "remarks",
    "to_json",
]
