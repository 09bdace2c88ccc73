"""Free combination of evaluations and a clipping, with what has no meaning refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plumbline.clipping import Clipping
from plumbline.evaluation import BatchClipping, Evaluation, RecordMomentum, Slot
from plumbline.methods.method import Method

_QUESTIONS: dict[Slot, str] = {
    "records": "what the model sees of a record",
    "weights": "at which weights a record's gradient is taken",
    "gradient": "what is done to a record's gradient before it is clipped",
    "update": "what becomes of the released gradient",
}


def compose(
    *,
    evaluation: Evaluation | Sequence[Evaluation] = (),
    clipping: Clipping,
    name: str | None = None,
    noisy: bool = True,
) -> Method:
    """A method from its parts, such as BAM with Global-Adapt on eight views of each record.

    Args:
        evaluation: Rules from ``plumbline.evaluation``, in any order; none for the ordinary
            gradient. At most one may answer each of the four questions that rules answer.
        clipping: From ``plumbline.clipping``.
        name: For the ledger and the statement.
        noisy: False for no noise, and no guarantee.

    Raises:
        ValueError: If the combination has no meaning, with the reason.
    """
    rules = tuple(evaluation) if isinstance(evaluation, Sequence) else (evaluation,)
    for rule in rules:
        if not isinstance(rule, Evaluation):
            raise TypeError(
                f"evaluation has {rule!r}, which is not a rule of evaluation. Give instances of "
                "the classes in plumbline.evaluation, such as Bam(radius=0.02)."
            )
    if not isinstance(clipping, Clipping):
        raise TypeError(
            f"clipping is {clipping!r}, which is not a clipping. Give an instance of a class in "
            "plumbline.clipping, such as Flat(1.0)."
        )
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
