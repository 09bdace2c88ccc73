"""Audits: how much a step, or a whole run, leaks at least, beside what the accountant claims.

``audit_step`` is the white-box audit of a method's real step, ``audit_run`` that of a whole
training by one run with many canaries, ``membership`` the threshold attack on a trained model, by
group. ``check_contract`` compares a method's steps on neighbouring batches, ``admit`` makes both of
these checks on parts from outside. None of them proves privacy: they find what is wrong, and how
near an attack comes.
"""

from plumbline.auditing.admission import NotAdmitted, admit
from plumbline.auditing.bands import BandsAudit, audit_bands
from plumbline.auditing.canary import Canary
from plumbline.auditing.contract import Contract, Movement, check_contract
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
    "BandsAudit",
    "Canary",
    "Contract",
    "Interval",
    "Membership",
    "Movement",
    "NotAdmitted",
    "RunAudit",
    "StepAudit",
    "admit",
    "audit_bands",
    "audit_run",
    "audit_step",
    "audited",
    "check_contract",
    "membership",
]
