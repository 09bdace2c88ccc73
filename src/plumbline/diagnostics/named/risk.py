"""What a private step costs each group, by cause, and bounds on who pays more.

From Gradient Misalignment.
"""

from __future__ import annotations

from typing import Any

import torch

from plumbline.diagnostics.curvature import trace
from plumbline.diagnostics.excessive_risk import ExcessiveRisk, risk_gap_bounds
from plumbline.diagnostics.excessive_risk import excessive_risk as risk_of
from plumbline.diagnostics.look import Look, diagnostic
from plumbline.diagnostics.named.curvature import largest_eigenvalue
from plumbline.results import Undefined

TRACE_PROBES = 8
"""Hutchinson's probes for a trace along a run. The paper has 100: ``excessive_risk_100``."""
PAPER_PROBES = 100


@diagnostic
def excessive_risk(look: Look) -> dict[str, ExcessiveRisk]:
    """Each group's expected change of loss in a step (Props. 1 and 2); traces from 8 probes."""
    return _risks(look, TRACE_PROBES)


@diagnostic
def excessive_risk_100(look: Look) -> dict[str, ExcessiveRisk]:
    """The same with the paper's 100 probes for each trace (App. B.3), twelve times as dear."""
    return _risks(look, PAPER_PROBES)


def _risks(look: Look, probes: int) -> dict[str, ExcessiveRisk]:
    found = {}
    for name, own in (
        look.groups or {"all": torch.ones(len(look.units), dtype=torch.bool)}
    ).items():
        hessian = look.hessian(own)
        estimate = trace(hessian, look.generator, probes=probes)
        known = None if isinstance(estimate, Undefined) else estimate
        found[name] = risk_of(hessian, [look.sample], _rate(look), known)
    return found


@diagnostic
def risk_bounds(look: Look) -> Any:
    """Lower bounds on how much more the first of two groups pays (Prop. 3; Tran et al., 2021)."""
    groups = list(look.groups.values())
    if len(groups) != 2:
        return Undefined(f"the bounds are for two groups, not {len(groups)}")
    batches, rate = [look.sample], _rate(look)
    first, second = (risk_of(look.hessian(own), batches, rate) for own in groups)
    largest = [largest_eigenvalue(look, own) for own in groups]
    known = [value for value in largest if not isinstance(value, Undefined)]
    if len(known) < 2:
        return next(value for value in largest if isinstance(value, Undefined))
    shares = [float(own.double().mean()) for own in groups]
    return risk_gap_bounds(
        first,
        second,
        batches,
        learning_rate=rate,
        eigenvalues=(known[0], known[1]),
        shares=(shares[0], shares[1]),
    )


def _rate(look: Look) -> float:
    return float(look.private.optimizer.param_groups[0]["lr"])
