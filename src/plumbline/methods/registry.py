"""The methods by name or reference: which there are, where they come from, what each of them takes.

A function decorated with ``method`` is a method by name; it is then in the table, the contract
tests, the benchmarks, the command line and the docs. A clipping or a rule of evaluation is a method
by its own name too, with nothing else changed from DP-SGD.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from plumbline.clipping import CLIPPINGS, Clipping, Flat
from plumbline.evaluation import EVALUATIONS, Evaluation
from plumbline.formats import markdown
from plumbline.methods.base import Method
from plumbline.registry import (
    MARK,
    Registry,
    UnknownPart,
    check_options,
    imported,
    options_of,
    unknown,
)
from plumbline.spaces import Space

Maker = TypeVar("Maker", bound=Callable[..., Method])
_CLIP = "clip"


@dataclass(frozen=True)
class Entry:
    """A method that can be made.

    Attributes:
        name: The name or reference that finds it.
        source: Paper and equation.
        make: Makes it from its settings; refuses a setting that it does not have.
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


METHODS: Registry[Entry] = Registry("method")


def method(
    source: str,
    example: Callable[[], dict[str, Any]] = dict,
    *,
    clip: bool = True,
    search: Mapping[str, Space] | None = None,
) -> Callable[[Maker], Maker]:
    """Registers a function that makes a method, under its own name.

    Args:
        source: Paper and equation.
        example: Makes its required arguments, where it has any.
        clip: Whether its clipping bound is worth tuning, if it has one. It is not where it only
            scales what is released, as the learning rate does.
        search: For each of its own settings that is worth tuning, where to search it.
    """

    def register(make: Maker) -> Maker:
        missing = set(search or {}) - set(options_of(make))
        if missing:
            raise TypeError(f"{make.__name__} has no setting {', '.join(sorted(missing))}.")
        METHODS.add(make.__name__, _entry(make.__name__, make, source, search, example, clip=clip))
        return make

    return register


def find(reference: str) -> Entry:
    """A method by the name of a method, clipping or rule of evaluation, or by reference.

    A reference ``"package.module:attribute"`` leads to a function that returns a ``Method``, a
    ``Method``, or a class of ``Clipping`` or ``Evaluation``. A class stands for the method that has
    nothing else: a rule of evaluation is clipped flat, at the setting ``clip``.

    Raises:
        UnknownPart: With the nearest name, or what is wrong with the reference.
    """
    if reference in METHODS:
        return METHODS[reference]
    for parts in (CLIPPINGS, EVALUATIONS):
        if reference in parts:
            return _of_part(reference, parts[reference])
    if MARK not in reference:
        names = [*METHODS, *CLIPPINGS, *EVALUATIONS]
        raise UnknownPart(unknown("method", reference, names))
    found = imported(reference, "method")
    if isinstance(found, type) and issubclass(found, Clipping | Evaluation):
        return _of_part(reference, found)
    if isinstance(found, Method):
        return _entry(reference, lambda: copy.deepcopy(found), found.name)
    if not callable(found):
        raise UnknownPart(
            f"{reference!r} is of type {type(found).__name__}, which is not a method. Name a "
            "function that returns a Method, a Method, or a subclass of Clipping or Evaluation."
        )
    known = next((one for one in METHODS.values() if inspect.unwrap(one.make) is found), None)
    if known is not None:
        return _entry(reference, found, known.source, known.search, known.example, clip=known.clips)
    return _entry(reference, found, getattr(found, "__module__", reference))


def _of_part(reference: str, kind: type[Clipping] | type[Evaluation]) -> Entry:
    """The method that has this part and is otherwise DP-SGD."""
    compose = METHODS["compose"].make

    def of_clipping(**settings: Any) -> Method:
        return compose(clipping=kind(**settings))

    def of_rule(*, clip: float = 1.0, **settings: Any) -> Method:
        return compose(evaluation=kind(**settings), clipping=Flat(clip))

    own = list(options_of(kind).values())
    if issubclass(kind, Evaluation):
        make: Callable[..., Method] = of_rule
        by_name = inspect.Parameter.KEYWORD_ONLY
        own = [*(one.replace(kind=by_name) for one in own), options_of(of_rule)[_CLIP]]
    else:
        make = of_clipping
    make.__doc__ = kind.__doc__
    make.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return _entry(reference, make, kind.__module__, kind.search)


def _entry(
    name: str,
    make: Callable[..., Method],
    source: str,
    search: Mapping[str, Space] | None = None,
    example: Callable[[], dict[str, Any]] = dict,
    *,
    clip: bool = True,
) -> Entry:
    @functools.wraps(make)
    def checked(**settings: Any) -> Method:
        check_options(f"The method {name!r}", make, settings)
        made = make(**settings)
        if not isinstance(made, Method):
            raise UnknownPart(
                f"The method {name!r} cannot be used: it returns {made!r}, which is not a Method. "
                "Return what plumbline.methods.compose makes."
            )
        return made

    search = search or {}
    clips = clip and _CLIP in options_of(make) and _CLIP not in search
    return Entry(name, source, checked, example, search, clips)


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
        rows = [[str(getattr(row, name)) or "-" for name in names] for row in self]
        return markdown([titles[name] for name in names], rows)


def table() -> MethodTable:
    """Every named method: source, questions, passes, state, and what it needs."""
    return MethodTable(_rows())


def _rows() -> Iterator[Row]:
    methods = [(entry, entry.make(**entry.example())) for entry in METHODS.values()]
    # Those with a guarantee first, each lot in the order in which they are written.
    for entry, one in sorted(methods, key=lambda pair: pair[1].unbounded_reason is not None):
        needs = ["groups"] if one.needs_groups else []
        needs += ["public data"] if any(rule.needs_public for rule in one.evaluation) else []
        keeps = [part.keeps for part in (*one.evaluation, one.clipping) if part.keeps]
        yield Row(
            name=entry.name,
            source=entry.source,
            queries=", ".join(query.name for query in one.queries(1.0)),
            passes=one.passes,
            keeps=", ".join(keeps),
            needs=", ".join(needs),
            guarantee=f"none: {one.unbounded_reason}" if one.unbounded_reason else "yes",
        )
