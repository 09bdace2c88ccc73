"""What identifies a run: its settings as plain facts, and the id computed from them.

A seeded run's id is a function of its seed and settings, so that a ledger recognises the run when
it is repeated. The noise of a run is keyed by this id too: two runs of one seed share none if their
settings differ, those of the optimizer included. (Two that differ only in their first weights or in
their data do; a ledger refuses the second, and the statement of a seeded run warns of it.)
"""

from __future__ import annotations

import hashlib
import hmac
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from plumbline.clipping import Clipping
from plumbline.evaluation import Evaluation
from plumbline.mechanism import ledger_format as lines
from plumbline.mechanism.ledger import Ledger, LedgerError, NoiseReuse
from plumbline.mechanism.random_source import SecureSource
from plumbline.mechanism.release import Query, StepRelease

Fact = str | int | float | bool | None
Facts = dict[str, Fact]

_ATTEMPT = 32  # bits of a noise position that say which step; those above say which attempt


def facts_of(value: Any, name: str) -> Facts:
    """Everything that configures a method, flat and by name, such as ``method.clipping.clip``."""
    if value is None or isinstance(value, str | bool):
        return {name: value}
    if isinstance(value, numbers.Real):  # NumPy's too, which a checkpoint should not hold
        return {name: int(value) if isinstance(value, numbers.Integral) else float(value)}
    if isinstance(value, Tensor):
        digest = hashlib.blake2b(digest_size=8)
        feed(digest, value)
        return {name: f"tensor {tuple(value.shape)} {digest.hexdigest()}"}
    parts: dict[str, Any] = {}
    if isinstance(value, Mapping):
        parts = {str(key): part for key, part in value.items()}
    elif isinstance(value, tuple | list):
        parts = {str(place): part for place, part in enumerate(value)}
    elif isinstance(value, Clipping | Evaluation) or is_dataclass(value):
        parts = vars(value)
    kind = getattr(value, "__qualname__", type(value).__qualname__)
    facts: Facts = {name: kind}
    for key in sorted(parts):
        facts |= facts_of(parts[key], f"{name}.{key}")
    return facts


def differences(
    own: Mapping[str, Fact],
    stored: Mapping[str, Fact],
    where: str = "in the checkpoint",
    absent: str = "None",
) -> list[str]:
    """Where two runs' facts differ, in words; ``absent`` stands for a fact that is missing."""

    def told(fact: Fact) -> str:
        return absent if fact is None else repr(fact)

    return [
        f"{name} is {told(own.get(name))} here and {told(stored.get(name))} {where}"
        for name in sorted(own.keys() | stored.keys())
        if own.get(name) != stored.get(name)
    ]


def run_id(seed: int | None, facts: Mapping[str, Fact]) -> str:
    """Random for a secure run; for a seeded one, ``<digest of the seed>-<digest of all facts>``."""
    if seed is None:
        return SecureSource().stream("run").bytes(8).hex()
    # An epsilon of 3 is one of 3.0.
    same = [(name, float(v) if type(v) is int else v) for name, v in sorted(facts.items())]
    whole = hashlib.sha256(repr((seed, same)).encode()).hexdigest()
    return f"{_seed_mark(seed)}-{whole[:16]}"


def refuse_shared_seed(ledger: Ledger, run: str, seed: int) -> None:
    """Refuses a seed that another run on the ledger has used.

    Equal seeds draw equal batches, and what is asked twice about one batch costs more than two
    questions about two: composing the runs would under-state epsilon.
    """
    mark = _seed_mark(seed)
    others = sorted(one for one in ledger.runs() if lines.seed_mark(one) == mark and one != run)
    if others:
        raise NoiseReuse(
            f"The seed {seed} was already used on the ledger {ledger.path}, by the run {others[0]} "
            "with other settings. Runs that share a seed share their batches, so their costs do "
            "not add up as the ledger does it. Give every run on a ledger a seed of its own."
        )


def require_charged(ledger: Ledger, before: Sequence[StepRelease]) -> None:
    """Refuses earlier releases that the ledger does not have: it would state too little."""
    charged = {lines.canonical(release): count for release, count in ledger.entries()}
    for release, count in Counter(before).items():
        if charged.get(lines.canonical(release.to_dict()), 0) < count:
            asked = ", ".join(query.name for query in release.queries)
            raise LedgerError(
                f"The ledger {ledger.path} has no charge for what `before` says was released "
                f"earlier ({asked}), so it would state too little. Give the ledger to what "
                "releases it too, such as private_moments(..., ledger=ledger)."
            )


def require_begun(ledger: Ledger, run: str, begun: int) -> None:
    """Refuses a ledger that lacks charges of steps that, by the run's own files, were begun."""
    charged = ledger.charged(run)
    if charged < begun:
        raise LedgerError(
            f"The ledger {ledger.path} has charged {charged} steps of the run, whose journal shows "
            f"that {begun} were begun: the ledger was put back to what it was earlier, and would "
            "state too little. Restore it as it was when the run was stopped"
        )


def noise_position(attempt: int, step: int) -> int:
    """Which noise of a seeded run a step uses."""
    return (attempt << _ATTEMPT) + step


def inputs_digest(key: bytes, query: Query, *beside: Any) -> str:
    """A digest of a question and its exact value, and of what later questions depend on.

    It is keyed with something that follows from the seed: without the seed, nobody can use a
    ledger to test a guess of the exact value.
    """
    return keyed_digest(key, [query.name, query.sensitivity, query.sigma, query.value, *beside])


def keyed_digest(key: bytes, exact: Any) -> str:
    """A digest of exact values, nested, that without the key says nothing about them."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    feed(digest, exact)
    return digest.hexdigest()[:32]


def joint_digest(digests: Sequence[str]) -> str:
    """One digest for the parts of a value that several processes have, in their order."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:32]


def feed(digest: Any, value: Any) -> None:
    """Feeds nested tensors and plain values into a digest."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().view(-1)
        digest.update(f"<{value.dtype}{tuple(value.shape)}>".encode())
        digest.update(flat.view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        for name, part in value.items():
            digest.update(f"<{name!r}>".encode())
            feed(digest, part)
    elif isinstance(value, tuple | list):
        for part in value:
            feed(digest, part)
    else:
        digest.update(f"<{value!r}>".encode())


def _seed_mark(seed: int) -> str:
    return hashlib.sha256(f"plumbline seed {seed}".encode()).hexdigest()[:16]
