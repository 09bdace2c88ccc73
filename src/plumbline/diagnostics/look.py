"""What a diagnostic is: a function of a ``Look`` at a run, with a name.

One decorator makes one, inside this package or outside; the name is the function's. Recipes and
``Probe`` then take it by that name (``measure = ["bias"]``) or as ``"package.module:function"``::

    @diagnostic
    def loudest(look):
        return {"norm": float(look.sample.norms.max())}

It returns a number, or a mapping or dataclass of numbers; where there is none, ``Undefined``. The
page draws what has no section of its own as curves along the run, or as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor

from plumbline.diagnostics.base import Sample
from plumbline.diagnostics.curvature import Hessian
from plumbline.diagnostics.through_method import sample_of
from plumbline.registry import Registry, UnknownPart
from plumbline.training import Private
from plumbline.training.batches import ChosenBatch

When = Literal["along", "end"]


@dataclass(frozen=True, eq=False)
class Look:
    """A run after a step, as a diagnostic sees it. Gradients are taken when they are asked for.

    Attributes:
        private: The run.
        units: The numbers of the records (or users) to measure on, ``[B]``.
        group_names: The groups' names, by value of the run's ``sensitive_features``.
        seed: For random vectors; the same at every reading, so that readings can be compared.
        released: What the last step released, and the one before it; None for what is not there.
        before: The samples after the steps just before this one, oldest first: as many as the
            diagnostics of the probe ask for, fewer at the start of a session.
        start: The run's first weights, if they were kept.
    """

    private: Private
    units: Tensor
    group_names: Mapping[int, str] = field(default_factory=dict)
    seed: int = 0
    released: tuple[Mapping[str, Tensor] | None, Mapping[str, Tensor] | None] = (None, None)
    before: tuple[Sample, ...] = ()
    start: Mapping[str, Tensor] | None = None

    @cached_property
    def sample(self) -> Sample:
        """The records' gradients, as the run clips them, and their plain gradients."""
        return sample_of(self.private, self.units, self.seed)

    @cached_property
    def records(self) -> Any:
        """The records, as the loss sees them."""
        return self.private.fetch(self._batch.indices, self._batch.step)

    @cached_property
    def groups(self) -> dict[str, Tensor]:
        """Which records each group has, ``[B]`` bool, by its name; groups without any left out."""
        found = next((chunk.groups for chunk in self._batch.chunks()), None)
        if found is None:
            return {}
        return {
            self.group_names.get(value, str(value)): found == value
            for value in sorted(set(found.tolist()))
        }

    @property
    def generator(self) -> torch.Generator:
        """A generator that starts in the same state at every reading."""
        return torch.Generator().manual_seed(self.seed)

    def named(self, by_value: Mapping[int, Any]) -> dict[str, Any]:
        """What was found by the groups' values, by their names."""
        return {self.group_names.get(value, str(value)): one for value, one in by_value.items()}

    def loss(self) -> float:
        """The records' mean loss at the weights as they are."""
        with torch.no_grad():
            losses = self.private.loss(self.private.model, self.records).double()
        return float(losses.sum()) / max(1, len(losses))

    def hessian(self, members: Tensor | None = None) -> Hessian:
        """The Hessian of the mean loss of some of the records (``[B]`` bool), or of all."""
        model, loss, unit = self.private.model, self.private.loss, self._batch.unit
        keep: Tensor | slice = slice(None)
        if members is not None:
            keep = (members if unit is None else members[unit]).nonzero()[:, 0]
        return Hessian(model, lambda: loss(model, self.records)[keep])

    @cached_property
    def _batch(self) -> ChosenBatch:
        return self.private.batch_of(self.units)


Function = Callable[[Look], Any]
Decorated = TypeVar("Decorated", bound=Function)


@dataclass(frozen=True)
class Diagnostic:
    """A function of a look, and when it is called.

    Attributes:
        make: The function.
        when: At every reading ("along"), or once after the last step, in evaluation mode ("end").
        steps_before: How many of the steps just before a reading it must look at too.
        needs_start: Whether it needs the run's first weights.
    """

    make: Function
    when: When = "along"
    steps_before: int = 0
    needs_start: bool = False

    def __call__(self, look: Look) -> Any:
        """What it measures."""
        return self.make(look)


DIAGNOSTICS: Registry[Diagnostic] = Registry("diagnostic")
"""Every diagnostic that has a name."""


@overload
def diagnostic(function: Decorated) -> Decorated: ...


@overload
def diagnostic(
    *, when: When = "along", steps_before: int = 0, needs_start: bool = False
) -> Callable[[Decorated], Decorated]: ...


def diagnostic(function: Decorated | None = None, **options: Any) -> Any:
    """Registers a function of a ``Look`` under its own name; options as in ``Diagnostic``."""

    def register(function: Decorated) -> Decorated:
        DIAGNOSTICS.add(function.__name__, Diagnostic(function, **options))
        return function

    return register if function is None else register(function)


def found(reference: str | Function) -> tuple[str, Diagnostic]:
    """A diagnostic by its name, as ``"package.module:function"`` or as a function; and its name.

    Raises:
        UnknownPart: With the nearest name, if there is none of that name.
    """
    part: Any = DIAGNOSTICS.find(reference) if isinstance(reference, str) else reference
    registered = next((one for one in DIAGNOSTICS.values() if one.make is part), part)
    if isinstance(registered, Diagnostic):
        return registered.make.__name__, registered
    if not callable(registered):
        raise UnknownPart(f"The diagnostic {reference!r} is not a function of a look: {part!r}.")
    return getattr(part, "__name__", str(reference).rpartition(":")[2]), Diagnostic(registered)
