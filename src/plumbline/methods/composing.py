"""Free combination of evaluations and a clipping, with what has no meaning refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from plumbline.clipping import CLIPPINGS, Clipping
from plumbline.evaluation import EVALUATIONS, BatchClipping, Evaluation, RecordMomentum, Slot
from plumbline.methods.base import Method
from plumbline.methods.registry import method
from plumbline.registry import Registry, UnknownPart, check_options

_QUESTIONS: dict[Slot, str] = {
    "records": "what the model sees of a record",
    "weights": "at which weights a record's gradient is taken",
    "gradient": "what is done to a record's gradient before it is clipped",
    "update": "what becomes of the released gradient",
}
Part = TypeVar("Part", Clipping, Evaluation)
Plain = str | Mapping[str, Any]
"""A part by name or reference, or as a mapping of its ``name`` and its settings."""


@method("your own parts", lambda: {"clipping": {"name": "Flat", "clip": 1.0}, "name": "compose"})
def compose(
    *,
    evaluation: Evaluation | Plain | Sequence[Evaluation | Plain] = (),
    clipping: Clipping | Plain,
    name: str | None = None,
    noisy: bool = True,
) -> Method:
    """A method from its parts, such as BAM with Global-Adapt on eight views of each record.

    A part is an object, or plain values that say the same: its name (``"Bam"``), where it is
    (``"my.rules:Soft"``), or either with settings (``{"name": "my.rules:Soft", "clip": 0.5}``).

    Args:
        evaluation: Rules from ``plumbline.evaluation``, in any order; none for the ordinary
            gradient. At most one may answer each of the four questions that rules answer.
        clipping: From ``plumbline.clipping``.
        name: For the ledger and the statement.
        noisy: False for no noise, and no guarantee.

    Raises:
        ValueError: If the combination has no meaning, with the reason.
    """
    if isinstance(evaluation, str) or not isinstance(evaluation, Sequence):
        evaluation = [evaluation]
    rules = tuple(_part(one, EVALUATIONS, Evaluation, "Bam(radius=0.02)") for one in evaluation)
    clipping = _part(clipping, CLIPPINGS, Clipping, "Flat(1.0)")
    if noisy and math.isinf(clipping.sensitivity):
        raise ValueError(
            f"{type(clipping).__name__} does not bound what a record can do: no noise covers it. "
            "Take another clipping, or noisy=False for a baseline without a guarantee."
        )
    _refuse_two_answers(rules)
    _refuse_pooled(rules, clipping)
    order: tuple[Slot, ...] = ("records", "weights", "gradient", "update")
    rules = tuple(sorted(rules, key=lambda rule: order.index(rule.slot)))
    label = name or " + ".join(type(part).__name__ for part in (*rules, clipping))
    return Method(name=label, evaluation=rules, clipping=clipping, noisy=noisy)


def _part(given: Any, registry: Registry[type[Part]], base: type[Any], such: str) -> Part:
    """A part from what stands for it."""
    if isinstance(given, base):
        return cast(Part, given)
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise TypeError(
            f"{given!r} is not a {registry.kind}. Give an instance of a class, such as {such}, or "
            'its name with its settings, such as {"name": "package.module:Class", ...}.'
        )
    reference = given["name"]
    settings = {name: value for name, value in given.items() if name != "name"}
    found = registry.find(reference)
    if not isinstance(found, type) or not issubclass(found, base):
        raise UnknownPart(
            f"The {registry.kind} {reference!r} cannot be used: it is {found!r}, and not a "
            f"subclass of {base.__module__}.{base.__name__}."
        )
    check_options(f"The {registry.kind} {reference!r}", found, settings)
    return cast(Part, found(**settings))


def _refuse_two_answers(rules: Sequence[Evaluation]) -> None:
    taken: dict[Slot, Evaluation] = {}
    for rule in rules:
        if rule.slot in taken:
            first, second = type(taken[rule.slot]).__name__, type(rule).__name__
            raise ValueError(
                f"{first} and {second} both say {_QUESTIONS[rule.slot]}, and exclude each other. "
                "Take one of them; rules that answer different questions combine freely."
            )
        taken[rule.slot] = rule


def _refuse_pooled(rules: Sequence[Evaluation], clipping: Clipping) -> None:
    """Buckets are drawn anew in each step: what belongs to a record has no place in them."""
    if clipping.buckets(1) is None:
        return
    for rule in rules:
        if isinstance(rule, RecordMomentum):
            raise ValueError(
                f"RecordMomentum keeps a momentum for every record, but {type(clipping).__name__} "
                "pools records into buckets that are drawn anew in each step. Take another "
                "clipping, or another momentum."
            )
        if clipping.together and isinstance(rule, BatchClipping):
            raise ValueError(
                f"BatchClipping and {type(clipping).__name__} both say which rows BatchNorm takes "
                "together. Take one of them."
            )
