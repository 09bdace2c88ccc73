"""What a method from outside must pass before its first charge.

The parts that come with this package are tested with it. A clipping, a rule of evaluation or a
method that is defined elsewhere is checked where it is used, with the settings that it is used
with: the contract on a few neighbourhoods (``contract``), its clipping on gradients of all lengths,
and the audit of a step (``step``). One that moves more than it declares is refused.

Passing proves nothing: see ``contract``. What it cannot find is the author's to prove.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache

import torch

from plumbline.auditing.contract import check_contract, check_norms
from plumbline.auditing.neighbours import Neighbourhood, neighbourhood
from plumbline.auditing.step import audit_step
from plumbline.auditing.tracing import group_values
from plumbline.auditing.watched import AuditError
from plumbline.gradients import KERNELS
from plumbline.methods import Method

_REPETITIONS = 1000
_PACKAGE = __name__.partition(".")[0]
_ADMITTED: dict[Hashable, tuple[str, ...]] = {}


class NotAdmitted(ValueError):
    """A part from outside moves what is released by more than it declares."""


def admit(method: Method) -> tuple[str, ...]:
    """Checks the parts of a method that are not of this package, once for each of their settings.

    Returns:
        What could not be checked, in sentences for the privacy statement; empty if all was.

    Raises:
        NotAdmitted: If a check finds that one record moves more than is declared.
    """
    strange = [type(one) for one in parts_of(method) if not _is_own(type(one))]
    if not strange or method.unbounded_reason is not None:
        return ()
    key = _key(method)
    if key is None or key not in _ADMITTED:
        names = ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in strange)
        with torch.random.fork_rng(devices=[]), KERNELS.unmeasured():
            unchecked = tuple(_unchecked(method, names))
        if key is None:
            return unchecked
        _ADMITTED[key] = unchecked
    return _ADMITTED[key]


def parts_of(method: Method) -> tuple[object, ...]:
    """The method, its rules of evaluation and its clipping."""
    return (method, *method.evaluation, method.clipping)


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _PACKAGE


def _unchecked(method: Method, names: str) -> Iterator[str]:
    """Makes the checks; gives a sentence for each that cannot be made."""
    checks = {"clipping": _norms, "neighbour contract": _contract, "audit of a step": _audit}
    for what, check in checks.items():
        reason = _tried(check, method)
        if reason is not None:
            # What a shipped rule shows the model may not fit the records here (images, say).
            # (Not dataclasses.replace: the class may have an __init__ of its own.)
            plain = copy.copy(method)
            plain.evaluation = tuple(filter(_fits, method.evaluation))
            if plain.evaluation == method.evaluation or _tried(check, plain) is not None:
                yield f"The {what} of {names} could not be run, so it was not checked: {reason}."


def _fits(rule: object) -> bool:
    return not _is_own(type(rule)) or getattr(rule, "slot", None) != "records"


def _tried(check: Callable[[Method], None], method: Method) -> str | None:
    """Why a check cannot be made; None if it was."""
    try:
        check(copy.deepcopy(method))
    except NotAdmitted:
        raise
    except Exception as error:  # whatever code from outside does with records that it is not for
        return f"{type(error).__name__}: {error}".rstrip(".")
    return None


def _norms(method: Method) -> None:
    groups = group_values(method) if method.needs_groups else None
    beyond = check_norms(method.clipping, groups)
    if beyond is not None:
        raise _refused(method, str(beyond))


def _contract(method: Method) -> None:
    for records, chunk in zip(_few(), (None, 2), strict=True):
        found = check_contract(method, [records], sampling_rate=1.0, chunk=chunk)
        if found.broken is not None:
            raise _refused(method, found.broken)


def _audit(method: Method) -> None:
    try:
        found = audit_step(method, repetitions=_REPETITIONS, seed=0)
    except AuditError as error:
        raise _refused(method, str(error)) from error
    if found.refuted:
        raise _refused(
            method,
            f"a canary moves the answers by {found.moved:.6g} standard deviations of the declared "
            f"noise. {found.verdict()}",
        )


def _refused(method: Method, reason: str) -> NotAdmitted:
    return NotAdmitted(
        f"The method '{method.name}' is not admitted, and nothing was charged: "
        f"{reason.rstrip('.')}. Declare the sensitivity that it has, or scale every record to what "
        "is declared, whatever its gradient. The guide 'Your own clipping, audited' shows how to "
        "find the mistake."
    )


@lru_cache
def _few() -> tuple[Neighbourhood, ...]:
    """Small ones, of seeds that show every mistake that tests/methods/test_contract.py plants."""
    return (
        neighbourhood(("ordinary", "scaled by 1e6", "duplicate", "NaN", "opposite"), 3),
        neighbourhood(("random", "zero", "infinite", "cancelling", "negated"), 1),
    )


def _key(method: Method) -> Hashable | None:
    """The classes and settings; None where a setting is not a plain value."""
    key: list[Hashable] = []
    for part in parts_of(method):
        if not hasattr(part, "__dict__"):
            return None
        others = ("evaluation", "clipping") if part is method else ()
        settings = _plain({k: v for k, v in vars(part).items() if k not in others})
        if settings is None:
            return None
        key.append((type(part), settings))
    return tuple(key)


def _plain(value: object) -> str | None:
    """A value as text, if it is plain."""
    if value is None or isinstance(value, str | int | float):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, Mapping):
        value = tuple(sorted(value.items(), key=repr))
    if isinstance(value, tuple | list):
        texts = [_plain(one) for one in value]
        return None if None in texts else repr(texts)
    return None
