"""How the trainers refuse, before anything is charged: all that is wrong at once, with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SAMPLING = "batches are Poisson samples of all records, which is what the accounting is for"
PRECISION = "use torch.autocast inside the model; weights, sums and noise stay in float32"

Allowed = Mapping[str, tuple[tuple[Any, ...], str]]
"""By name of a setting: the values that are allowed, the default first, and why no others are."""


def refused(owner: Any, allowed: Allowed) -> Iterator[str]:
    """Each setting of a trainer that is not allowed, with the reason."""
    for name, (values, reason) in allowed.items():
        value = getattr(owner, name, values[0])
        if value not in values:
            yield f"{name} is {value!r}: {reason}"


def refuse_all(who: str, problems: Iterable[str]) -> None:
    """Raises if there is a problem, and names all of them.

    Raises:
        ValueError: One line for each.
    """
    listed = "\n".join(f"- {problem}." for problem in problems)
    if listed:
        raise ValueError(f"{who} cannot do this (nothing was charged):\n{listed}")
