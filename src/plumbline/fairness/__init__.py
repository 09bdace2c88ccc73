"""Who pays for privacy: metrics by group, what privacy costs each, and how sure one can be of it.

``evaluate`` has one model's metrics by group, ``privacy_cost`` what private training costs each
group (paper 004, Eqs. 1 and 2), ``bootstrap`` and ``bootstrap_cost`` the test set's uncertainty,
``across_seeds`` and ``compare_to`` the training's. ``to_json`` makes JSON of all of them.
"""

from plumbline.fairness.cost import Cost, CostByGroup, CostGap, cost_of_reports, privacy_cost
from plumbline.fairness.cost_intervals import CostIntervals, bootstrap_cost
from plumbline.fairness.evaluating import GroupReport, evaluate
from plumbline.fairness.features import UNKNOWN
from plumbline.fairness.gaps import Gap
from plumbline.fairness.groups import MINIMUM_SIZE, Groups, group_records
from plumbline.fairness.intervals import Intervals, bootstrap
from plumbline.fairness.metrics import METRICS, Metric
from plumbline.fairness.outcomes import Outcomes
from plumbline.fairness.resampling import Interval
from plumbline.fairness.results import NOT_COVERED, Number, Undefined, to_json
from plumbline.fairness.seeds import Estimate, SeedReport, across_seeds, estimate
from plumbline.fairness.significance import PairedTest, SignificanceTests, compare_to, holm

__all__ = [
    "METRICS",
    "MINIMUM_SIZE",
    "NOT_COVERED",
    "UNKNOWN",
    "Cost",
    "CostByGroup",
    "CostGap",
    "CostIntervals",
    "Estimate",
    "Gap",
    "GroupReport",
    "Groups",
    "Interval",
    "Intervals",
    "Metric",
    "Number",
    "Outcomes",
    "PairedTest",
    "SeedReport",
    "SignificanceTests",
    "Undefined",
    "across_seeds",
    "bootstrap",
    "bootstrap_cost",
    "compare_to",
    "cost_of_reports",
    "estimate",
    "evaluate",
    "group_records",
    "holm",
    "privacy_cost",
    "to_json",
]
