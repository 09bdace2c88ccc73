"""The named methods: which there are, where they come from, and what each of them takes.

A function decorated with ``named`` is a method by name; it is then in the table, the contract
tests, the benchmarks, the command line and the docs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from plumbline.methods.method import Method
from plumbline.methods.spaces import Space


@dataclass(frozen=True)
class Entry:
    """A named method.

    Attributes:
        name: Its name.
        source: Paper and equation.
        make: The function that makes it.
        example: Makes its required arguments, where it has any, for the table and the tests.
        search: Where its own settings are searched when it is tuned; the learning rate is searched
            for every method.
        clips: Whether its clipping bound ``clip`` is searched too.
    """

    name: str
    source: str
    make: Callable[..., Method]
    example: Callable[[], dict[str, Any]]
    search: Mapping[str, Space]
    clips: bool


@dataclass(frozen=True)
class Row:
    """A named method's line of the table."""

    name: str
    source: str
    queries: str
    passes: int
    keeps: str
    needs: str
    guarantee: str


class MethodTable(list[Row]):
    """The table; printed, it is Markdown."""

    def __str__(self) -> str:
        titles = {
            "name": "method",
            "source": "paper, equation",
            "queries": "asks",
            "passes": "passes",
            "keeps": "keeps",
            "needs": "needs",
            "guarantee": "guarantee",
        }
        names = [field.name for field in fields(Row)]
        lines = [[titles[name] for name in names], ["---"] * len(names)]
        lines += [[str(getattr(row, name)) or "-" for name in names] for row in self]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


REGISTRY: dict[str, Entry] = {}


def named(
    source: str,
    example: Callable[[], dict[str, Any]] = dict,
    *,
    clip: bool = True,
    **search: Space,
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Registers a function that makes a method, under its own name.

    Args:
        source: Paper and equation.
        example: Makes its required arguments, where it has any.
        clip: Whether its clipping bound is worth tuning, if it has one. It is not where it only
            scales what is released, as the learning rate does.
        search: For each of its own settings that is worth tuning, where to search it.
    """

    def register(make: Callable[..., Method]) -> Callable[..., Method]:
        settings = inspect.signature(make).parameters
        unknown = set(search) - set(settings)
        if unknown:
            raise TypeError(f"{make.__name__} has no setting {', '.join(sorted(unknown))}.")
        clips = clip and "clip" in settings
        REGISTRY[make.__name__] = Entry(make.__name__, source, make, example, search, clips)
        return make

    return register


def table() -> MethodTable:
    """Every named method: source, questions, passes, state, and what it needs."""
    return MethodTable(_rows())


def _rows() -> Iterator[Row]:
    methods = [(entry, entry.make(**entry.example())) for entry in REGISTRY.values()]
    # Those with a guarantee first, each lot in the order in which they are written.
    for entry, method in sorted(methods, key=lambda pair: pair[1].unbounded_reason is not None):
        needs = ["groups"] if method.needs_groups else []
        needs += ["public data"] if any(rule.needs_public for rule in method.evaluation) else []
        keeps = [part.keeps for part in (*method.evaluation, method.clipping) if part.keeps]
        yield Row(
            name=entry.name,
            source=entry.source,
            queries=", ".join(query.name for query in method.queries(1.0)),
            passes=method.passes,
            keeps=", ".join(keeps),
            needs=", ".join(needs),
            guarantee=f"none: {method.unbounded_reason}" if method.unbounded_reason else "yes",
        )
