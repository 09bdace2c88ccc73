"""The notes of one capture: which weights met which records, and what flowed back.

During a capture every trainable parameter of the model is replaced by a tracked tensor
(``tracked.py``) that knows its ``Weight``. When a torch function meets it, the layer files run the
operation, ``watch`` its output, and after the one backward pass turn the gradient of that output
into per-record terms.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch._C._functorch import (  # type: ignore[attr-defined]
    _set_vmap_fallback_warning_enabled,
)
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

from plumbline.gradients.compound import Pulled, merge
from plumbline.gradients.errors import CaptureError
from plumbline.gradients.terms import Dense, Term, rows_like
from plumbline.record_random import Draws


class Guard(AbstractContextManager["Guard"], Protocol):
    """Watches the model's code while it is on (``record_mode.py``)."""

    def refuse_kept(self) -> None:
        """Refuses a model that kept one of the record's tensors."""


class Offset:
    """How far each record's own weight is from the shared one: ``scale_i g_i``."""

    def __init__(self, term: Term, scale: Tensor) -> None:
        self._term = term
        self.scale = scale

    @property
    def rank_one(self) -> tuple[Tensor, Tensor] | None:
        """The unscaled factors ``[B, m]`` and ``[B, n]`` of the offsets, if they have rank one."""
        return self._term.rank_one

    def scale_of(self, values: Tensor) -> Tensor | None:
        """The scale, if the offsets are ``values`` (``[B, m]``) times it, in the same memory."""
        held = self._term.values if isinstance(self._term, Dense) else None
        if held is None or held.shape != values.shape or held.data_ptr() != values.data_ptr():
            return None
        return self.scale

    def values(self) -> Tensor:
        """The unscaled offsets, ``[B, *shape]``."""
        return self._term.dense(0, self._term.records)

    def dense(self) -> Tensor:
        """The offsets, ``[B, *shape]``."""
        values = self.values()
        return values * rows_like(self.scale, values)

    def moved(self, value: Tensor) -> Tensor:
        """Each record's own weight, ``[B, *shape]``."""
        values = self.values()
        scale = rows_like(self.scale, values)
        return torch.addcmul(value, values, scale)

    @property
    def low_rank(self) -> bool:
        """Whether it is cheaper to move a linear map's outputs than its weights."""
        return self._term.low_rank

    @property
    def factors(self) -> tuple[Tensor, Tensor] | None:
        """The unscaled factors ``[B, P, m]`` and ``[B, P, n]`` of the offsets, if it has any."""
        return self._term.factors

    def applied(self, base: Tensor, inputs: Tensor) -> Tensor:
        """A linear map's outputs ``[B, T, m]``, moved to each record's own weights."""
        return self._term.applied(base, inputs, self.scale)

    def over(self, part: Callable[[Term], Term]) -> Offset:
        """The offset of a part of the weight, which ``part`` takes from a term."""
        return Offset(part(self._term), self.scale)

    def rows(self, index: Tensor) -> Tensor:
        """The change in rows ``index [B, T]`` of a table, ``[B, T, d]``."""
        rows = self._term.rows(index)
        return rows * rows_like(self.scale, rows)


class Weight:
    """A parameter, or something computed from parameters only, during one capture.

    Attributes:
        name: The parameter's name, for messages.
        value: What the layer files compute with; detached, except while the capture is checked
            against autograd.
        offset: Each record's own offset, if the capture is perturbed.
        tangent: The direction in which per-record values are differentiated forward, if any.
        narrow: Whether it was computed with fewer bits than the parameters have (autocast).
    """

    def __init__(self, tape: Tape, name: str, value: Tensor, offset: Offset | None = None) -> None:
        self.tape = tape
        self.name = name
        self.offset = offset
        self.terms: list[Term] = []
        self._roots: tuple[Weight, ...] = ()
        self.own: Tensor | None = None  # per-record values, once requested
        self.tangent: Tensor | None = None
        self.narrow = False
        self._graph: Tensor | None = None
        self.value = value
        if tape.checked:
            self._graph = self.value = value.detach().requires_grad_()

    @classmethod
    def made(
        cls, graph: Tensor, roots: tuple[Weight, ...], own: Tensor | None, *, narrow: bool = False
    ) -> Weight:
        """The weight that a parametrisation computed from ``roots``.

        ``narrow``: one of its inputs was computed with fewer bits.
        """
        weight = cls.__new__(cls)
        weight.tape = roots[0].tape
        weight.name = " and ".join(root.name for root in roots)
        weight.offset = None
        weight.terms = []
        weight._roots = roots
        weight.own = own
        weight.tangent = None
        weight.narrow = narrow or graph.dtype.itemsize < roots[0].value.dtype.itemsize
        weight._graph = graph
        weight.value = graph if weight.tape.checked else graph.detach()
        if own is None:
            weight.tape.made.append(weight)
        return weight

    @property
    def roots(self) -> tuple[Weight, ...]:
        """The parameters it was computed from (itself, for a parameter)."""
        return self._roots or (self,)  # not stored: a cycle would keep the gradients' memory

    @property
    def graph(self) -> Tensor:
        """The value with its graph back to the parameters."""
        if self._graph is None:
            self._graph = self.value.detach().requires_grad_()
        return self._graph

    def add(self, term: Term) -> None:
        """Adds per-record gradients of this weight."""
        self.terms.append(term)

    def per_record(self) -> Tensor:
        """Each record's own value, ``[B, *shape]``, whose gradient is captured."""
        if self.own is None:
            records = self.tape.records
            own = self.value.expand(records, *self.value.shape)
            if self.offset is not None:
                own = self.offset.moved(self.value)
            if self.tangent is not None:
                leaf = own.detach().clone().requires_grad_()
                tangent = self.tangent.expand_as(own).contiguous()
                own = forward_ad.make_dual(leaf, tangent)  # type: ignore[no-untyped-call]
            elif not own.requires_grad:
                own = own.detach().requires_grad_()
            self.own = self.tape.watch(own, lambda gradient: self.add(Dense(gradient)))
        return self.own

    def taken(self) -> Term | None:
        """Takes the collected gradients out as one term; None if there are none."""
        terms, self.terms = self.terms, []
        return merge(terms) if terms else None

    def settle(self) -> None:
        """Carries the gradients of a computed weight to the parameters it came from."""
        made = self.taken()
        if made is None:
            return
        for root in self.roots:
            pulled: Term = Pulled(made, root.value.shape, partial(self._pull, root))
            if self.narrow:
                # Pulled as a sum, the records would be rounded together, and coarsely: one record
                # could move the sum by more than its norm. Each is pulled once, and kept.
                pulled = Dense(pulled.dense(0, made.records))
            root.add(pulled)

    def _pull(self, root: Weight, rows: Tensor) -> Tensor:
        with quiet_vmap():
            (pulled,) = torch.autograd.grad(
                self.graph,
                root.graph,
                rows.to(self.graph.dtype),
                is_grads_batched=True,
                retain_graph=True,
                allow_unused=True,
            )
        return root.value.new_zeros(len(rows), *root.value.shape) if pulled is None else pulled


class Tape:
    """One capture's notes.

    Attributes:
        records: The number of records, B.
        rows: How many rows of the batch each record has: itself, and its company.
        has_company: Whether rows were asked to be taken together, by BatchNorm say.
        checked: Whether autograd's own gradient is computed too, to compare.
        dense: Whether every parameter gets per-record values (for Hessian products).
        narrow: Whether a layer computed with fewer than 32 bits (autocast).
        call: The call that is being handled, which knows the tensors with records.
        guard: Sees the model's own code in the backward pass too, once the model has run.
    """

    def __init__(
        self,
        records: int,
        random: Draws | None = None,
        *,
        rows: int | None = None,
        checked: bool = False,
        dense: bool = False,
    ) -> None:
        self.records = records
        self.rows = 1 if rows is None else rows
        self.has_company = rows is not None
        self._random = random
        self.checked = checked
        self.dense = dense
        self.narrow = False
        self.made: list[Weight] = []
        self.call: Container[object] = ()
        self.guard: Guard | None = None
        self._edges: list[Any] = []
        self._terms: list[Callable[[Tensor], None]] = []
        self._read: list[tuple[Tensor, int]] = []

    @property
    def has_random(self) -> bool:
        """Whether the records' random numbers are given, rather than drawn when first used."""
        return self._random is not None

    @property
    def random(self) -> Draws:
        """The records' own random numbers."""
        if self._random is None:
            self._random = Draws.by_place(self.records)
        return self._random

    @staticmethod
    def weight(tensor: object) -> Weight | None:
        """The weight behind a tracked tensor, or None."""
        return getattr(tensor, "_weight", None)

    def weights(self, *tensors: object) -> list[Weight] | None:
        """The weights among the tensors; None when one of them only has per-record values."""
        if self.dense:
            return None
        found = []
        for tensor in tensors:
            weight = self.weight(tensor)
            if weight is not None:
                if weight.own is not None:
                    return None
                found.append(weight)
        return found or None

    def has_records(self, *tensors: object) -> bool:
        """Whether one of the tensors of the current call has the records in its first dimension.

        All others are weights, or the same for every record.
        """
        for tensor in tensors:  # noqa: SIM110 (in every layer: a generator takes twice as long)
            if tensor in self.call:
                return True
        return False

    def computed(self, output: Tensor) -> None:
        """Notes the number of bits of a layer's output; ``watch`` does so too."""
        self.narrow = self.narrow or output.dtype.itemsize < 4

    def watch(
        self, output: Tensor, terms: Callable[[Tensor], None], reads: Tensor | None = None
    ) -> Tensor:
        """Passes the gradient that flows back to ``output`` on to ``terms``.

        Returns ``output``, which the model must continue with. ``reads`` is a tensor that ``terms``
        will read and that must not be changed in place before.
        """
        if not torch.is_grad_enabled():
            return output
        self.computed(output)
        if output._is_view():
            output = output.clone()  # an in-place operation on a view would move the edge
        if not output.requires_grad:
            anchor = torch.zeros((), device=output.device, requires_grad=True)
            output = _Anchor.apply(output, anchor)  # type: ignore[no-untyped-call]
        node = output.grad_fn
        self._edges.append(
            get_gradient_edge(output) if node is None else GradientEdge(node, output.output_nr)
        )
        self._terms.append(terms)
        if reads is not None:
            self._read.append((reads, reads._version))
        return output

    def backward(self, total: Tensor, *, keep: bool = False) -> None:
        """Runs the one backward pass, which fills the terms of every weight.

        With ``keep`` the graph stays for another pass.
        """
        gradients = self.differentiated(total, self._edges, keep=keep)
        self._refuse_overwritten()
        with torch.no_grad():
            for gradient, terms in zip(gradients, self._terms, strict=True):
                if gradient is not None:
                    terms(gradient)
        for made in reversed(self.made):
            made.settle()
        if not keep:
            self.release()

    def differentiated(
        self, total: Tensor, inputs: Sequence[Any], *, keep: bool = False, twice: bool = False
    ) -> tuple[Tensor | None, ...]:
        """Autograd's gradients; None for inputs that ``total`` does not depend on.

        With ``keep`` the graph stays for another pass; with ``twice`` the gradients have one too.
        """
        # Not torch.autograd.grad: it is a torch function itself, in which the guard is off.
        with self.guard or nullcontext():
            return _engine_run_backward(
                (total,), (torch.ones_like(total),), keep or twice, twice, tuple(inputs),
                allow_unreachable=True, accumulate_grad=False,
            )  # fmt: skip

    def release(self) -> None:
        """Frees the graph."""
        self.made.clear()
        self._terms.clear()
        self._edges.clear()
        self._read.clear()
        guard, self.guard = self.guard, None  # the guard knows the tape: no cycle may stay
        if guard is not None:
            guard.refuse_kept()

    def _refuse_overwritten(self) -> None:
        for tensor, version in self._read:
            if tensor._version != version:
                raise CaptureError(
                    f"A layer's input of shape {tuple(tensor.shape)} was changed in place after "
                    "the layer had read it, so its gradient cannot be computed (autograd refuses "
                    "this too). Replace the in-place operation with an ordinary one."
                )


class quiet_vmap:
    """Silences torch's warning that an operation has no batching rule: it is slow, not wrong."""

    _inside = 0

    def __enter__(self) -> None:
        quiet_vmap._inside += 1
        _set_vmap_fallback_warning_enabled(False)

    def __exit__(self, *error: object) -> None:
        quiet_vmap._inside -= 1
        _set_vmap_fallback_warning_enabled(quiet_vmap._inside == 0)


class _Anchor(torch.autograd.Function):
    """Puts a tensor that needs no gradient into the graph, without copying it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None
