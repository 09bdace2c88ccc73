"""Audits: how much a step, or a whole run, leaks at least, beside what the accountant claims.

``audit_step`` is the white-box audit of a method's real step, ``audit_run`` that of a whole
training by one run with many canaries, ``membership`` the threshold attack on a trained model, by
group. None of them proves privacy: they find what is wrong, and how near an attack comes.
"""

from plumbline.auditing.canary import Canary
from plumbline.auditing.membership import MEASURES, Attack, Interval, Membership, membership
from plumbline.auditing.one_run import RunAudit, audit_run
from plumbline.auditing.step import STATISTICS, AuditFinding, StepAudit, audit_step, audited
from plumbline.auditing.watched import AuditError

__all__ = [
    "MEASURES",
    "STATISTICS",
    "Attack",
    "AuditError",
    "AuditFinding",
    "Canary",
    "Interval",
    "Membership",
    "RunAudit",
    "StepAudit",
    "audit_run",
    "audit_step",
    "audited",
    "membership",
]
