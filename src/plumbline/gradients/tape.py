"""The notes of one capture: which weights met which records, and what flowed back.

During a capture every trainable parameter of the model is replaced by a tracked tensor
(``tracked.py``) that knows its ``Weight``. When a torch function meets it, the layer files run the
operation, ``watch`` its output, and after the one backward pass turn the gradient of that output
into per-record terms. The tape also decides which dimension of a tensor counts the records.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from plumbline.gradients.compound import Pulled, merge
from plumbline.gradients.errors import (
    BatchDimensionError,
    CaptureError,
    UnsupportedModelError,
)
from plumbline.gradients.terms import Dense, Term, rows_like

Where = Literal["first", "second", "flat", "none"]
"""Which dimension counts the records: the first (batch first), the second (sequence first), the
first together with positions (``[B * T, ...]``), or none (the same for every record)."""

_USUAL_ORDER: tuple[Where, ...] = ("first", "second", "flat", "none")


Place = tuple[str, int]
"""A parameter's name, and which of its uses in a capture is meant."""


@dataclass(frozen=True)
class LayoutChoice:
    """The layouts possible at a place, likeliest first, and the one that was taken."""

    ways: tuple[Where, ...]
    taken: Where


@dataclass(frozen=True)
class Layout:
    """Where a tensor keeps its records, and how to get to ``[B, T, features]`` and back."""

    where: Where
    records: int

    def to_records(self, tensor: Tensor) -> Tensor:
        """``[B, T, d]`` from a tensor whose last dimension is d."""
        if self.where == "second":
            tensor = tensor.transpose(0, 1)
        return tensor.reshape(self.records, -1, tensor.shape[-1])

    def from_records(self, rows: Tensor, like: Tensor) -> Tensor:
        """Puts ``[B, T, d]`` back into the leading dimensions of ``like``."""
        leading = list(like.shape[:-1])
        if self.where == "second":
            leading[0], leading[1] = leading[1], leading[0]
            # Contiguous, as from torch's own function: callers use view.
            return rows.reshape(*leading, rows.shape[-1]).transpose(0, 1).contiguous()
        return rows.reshape(*leading, rows.shape[-1])


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

    def dense(self) -> Tensor:
        """The offsets, ``[B, *shape]``."""
        values = self._term.dense(0, self._term.records)
        return values * rows_like(self.scale, values)

    def moved(self, value: Tensor) -> Tensor:
        """Each record's own weight, ``[B, *shape]``."""
        values = self._term.dense(0, self._term.records)
        scale = rows_like(self.scale, values)
        return torch.addcmul(value, values, scale)

    @property
    def low_rank(self) -> bool:
        """Whether it is cheaper to move a linear map's outputs than its weights."""
        return self._term.low_rank

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


@dataclass
class Memory:
    """What earlier captures of a model showed about its layouts."""

    layouts: dict[Place, Where] = field(default_factory=dict)


class Tape:
    """One capture's notes.

    Attributes:
        checked: Whether autograd's own gradient is computed too, to compare.
        dense: Whether every parameter gets per-record values (for Hessian products).
        choices: The places where more than one layout was possible, in the order met.
        unsure: Whether one of them was guessed, because no earlier capture had shown it.
        narrow: Whether a layer computed with fewer than 32 bits (autocast).
    """

    def __init__(
        self,
        records: int | None,
        memory: Memory,
        *,
        checked: bool,
        dense: bool = False,
        layouts: Mapping[Place, Where] | None = None,
    ) -> None:
        self._records = records
        self.checked = checked
        self.dense = dense
        self.choices: dict[Place, LayoutChoice] = {}
        self.unsure = False
        self.narrow = False
        self.made: list[Weight] = []
        self.constants: set[int] = set()
        self._memory = memory
        self._layouts = layouts or {}
        self._seen: dict[Place, Where] = {}
        self._answered: dict[int, tuple[weakref.ref[Tensor], Layout | None]] = {}
        self._uses: Counter[str] = Counter()
        self._edges: list[Any] = []
        self._terms: list[Callable[[Tensor], None]] = []
        self._read: list[tuple[Tensor, int]] = []
        self._recording = True

    @property
    def records(self) -> int:
        """The number of records in the batch."""
        if self._records is None:
            raise CaptureError(
                "A parameter was copied for each record before any record met the model. Pass "
                "the number of records: capture(..., records=len(batch))."
            )
        return self._records

    @property
    def expected(self) -> int | None:
        """The number of records, if known."""
        return self._records

    def expect(self, records: int) -> None:
        """Sets the number of records, unless it is known."""
        if self._records is None:
            self._records = records

    @staticmethod
    def weight(tensor: object) -> Weight | None:
        """The weight behind a tracked tensor, or None."""
        return getattr(tensor, "_weight", None) if isinstance(tensor, Tensor) else None

    def weights(self, *tensors: object) -> list[Weight] | None:
        """The weights among the tensors; None when one of them only has per-record values."""
        found = [weight for tensor in tensors if (weight := self.weight(tensor)) is not None]
        if not found or self.dense or any(weight.own is not None for weight in found):
            return None
        return found

    def layout(self, tensor: Tensor, weight: Weight, leading: int) -> Layout | None:
        """Where ``tensor``, which meets ``weight``, keeps its records; None for a constant.

        Args:
            tensor: What meets the weight.
            weight: For the memory of earlier captures, and for messages.
            leading: How many leading dimensions may count records.
        """
        if tensor.requires_grad and leading == 1 and tensor.shape[0] == self._records:
            return Layout("first", self._records)  # the only possibility
        if id(tensor) in self.constants or leading == 0:
            return None
        answered = self._answered.get(id(tensor))
        if answered is not None and answered[0]() is tensor:
            return answered[1]
        self.expect(tensor.shape[0])
        possible = self._possible(tensor, leading)
        if not possible:
            raise self._no_batch_dimension(tensor, weight)
        where = self._decide(weight, possible)
        layout = None if where == "none" else Layout(where, self.records)
        self._answered[id(tensor)] = weakref.ref(tensor), layout
        return layout

    def batch_layout(self, tensor: Tensor, weight: Weight) -> Layout | None:
        """Like ``layout``, for a tensor whose first dimension must count records.

        The answer also holds when the same tensor then goes to another layer file.
        """
        layout = self.layout(tensor, weight, leading=1)
        if layout is None and tensor.shape[0] % max(1, self.records):
            raise self._no_batch_dimension(tensor, weight)
        return layout

    def copied(self, weight: Weight, copies: Mapping[Where, int]) -> Where:
        """Along which dimension a parameter is copied once per record, or "none".

        ``copies`` is the number of copies along each dimension that is copied at all.
        """
        possible = [where for where, count in copies.items() if count == self.records]
        return self._decide(weight, [*possible, "none"])

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
        if self._recording:
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
        self._recording = False  # checkpointed segments run forward again now
        try:
            gradients = torch.autograd.grad(
                total, self._edges, allow_unused=True, retain_graph=keep or None
            )
        except RuntimeError as error:
            if "use_reentrant" not in str(error):
                raise
            raise UnsupportedModelError(
                "The model uses reentrant gradient checkpointing, which hides what flows through a "
                "segment from torch.autograd.grad. Use the non-reentrant kind, which gives the "
                "same numbers: checkpoint(..., use_reentrant=False)."
            ) from error
        self._refuse_overwritten()
        with torch.no_grad():
            for gradient, terms in zip(gradients, self._terms, strict=True):
                if gradient is not None:
                    terms(gradient)
        for made in reversed(self.made):
            made.settle()
        if not keep:
            self.release()

    def release(self) -> None:
        """Frees the graph."""
        self.made.clear()
        self._terms.clear()
        self._edges.clear()
        self._read.clear()

    def remember(self) -> None:
        """Keeps this capture's layouts for later captures, once they are known to be right."""
        self._memory.layouts.update(self._seen)

    def _decide(self, weight: Weight, possible: list[Where]) -> Where:
        # A batch may happen to be as long as a sequence. Earlier captures of the same place decide;
        # without any, the usual order is taken and the capture is checked.
        key = (weight.name, self._uses[weight.name])
        self._uses[weight.name] += 1
        taken = possible[0]
        if len(possible) > 1:
            known = self._memory.layouts.get(key)
            ways = sorted(possible, key=lambda way: (way != known, _USUAL_ORDER.index(way)))
            self.unsure = self.unsure or known not in possible
            taken = self._layouts.get(key, ways[0])
            self.choices[key] = LayoutChoice(tuple(ways), taken)
        if self._recording:
            self._seen[key] = taken
        return taken

    def _possible(self, tensor: Tensor, leading: int) -> list[Where]:
        shape, records = tensor.shape, self.records
        possible: list[Where] = []
        if shape[0] == records:
            possible.append("first")
        if leading > 1 and shape[1] == records:
            possible.append("second")
        several = records > 0 and shape[0] > records and shape[0] % records == 0
        if several and not possible:
            possible.append("flat")
        if not tensor.requires_grad:
            possible.append("none")
        return possible

    def _no_batch_dimension(self, tensor: Tensor, weight: Weight) -> BatchDimensionError:
        return BatchDimensionError(
            f"A tensor of shape {tuple(tensor.shape)} meets the parameter '{weight.name}', but "
            f"the batch has {self.records} records and none of its leading dimensions counts "
            "them. Every input of the model must have the same batch dimension, first or "
            "second; expand inputs that are shared by all records before the model."
        )

    def _refuse_overwritten(self) -> None:
        for tensor, version in self._read:
            if tensor._version != version:
                raise CaptureError(
                    f"A layer's input of shape {tuple(tensor.shape)} was changed in place after "
                    "the layer had read it, so its gradient cannot be computed (autograd refuses "
                    "this too). Replace the in-place operation with an ordinary one."
                )


@contextmanager
def quiet_vmap() -> Iterator[None]:
    """Silences torch's warning that an operation has no batching rule: it is slow, not wrong."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


class _Anchor(torch.autograd.Function):
    """Puts a tensor that needs no gradient into the graph, without copying it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None
