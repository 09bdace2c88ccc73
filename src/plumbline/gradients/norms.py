"""Squared norms that are never under-stated, and the gradients that go with them.

Norms and sums need the same gradients. Where they fit into memory they are kept after the norms, if
that is the fastest way. Every norm carries a bound on its rounding, and records whose sums cancel
are computed again in float64: their exact gradients are what is released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from plumbline.compiled import Together
from plumbline.gradients.compound import Patched
from plumbline.gradients.kernels import KERNELS, Key
from plumbline.gradients.outer import Outer
from plumbline.gradients.terms import Dense, Term

_CANCELLED = 5e-5
"""Above this relative bound on its rounding, a record's norm is computed again in float64."""

_RELEASED = 1e-3
"""The same where gradients are not kept: a norm is over-stated by at most this."""

_TINY = 1e-15
"""Norms below this may have lost terms whose squares vanish in float32."""

_ROOM = 1.75
"""How much memory kept gradients may take, relative to what they are computed from."""


class Norms(NamedTuple):
    """Each record's squared norms, ``[B]`` float64, by parameter and over all of them."""

    squares: dict[str, Tensor]
    total: Tensor


@torch.no_grad()
def square_norms(terms: dict[str, Term]) -> Norms:
    """The squared norms of each record's gradients, never under-stated.

    Replaces terms: gradients that are kept, and those that were computed again, take the place of
    what they were computed from, whose memory is free at once.
    """
    keep = keepable(terms)
    together = Together()
    for name, term in terms.items():
        if isinstance(term, Outer) and KERNELS.chosen(_key(term, name in keep)) == "gram":
            term.begin_gram(together)
    together.run()
    squares = {}
    for name, term in terms.items():
        squares[name], terms[name] = _guarded(term, *_measured(term, name in keep))
    return Norms(squares, _recompute_tiny(squares, terms))


def keepable(terms: Mapping[str, Term]) -> set[str]:
    """The parameters whose dense gradients may be kept, smallest relative to inputs first.

    Together they may take ``_ROOM`` times the memory of the captured inputs and gradients.
    """
    known = {name: term for name, term in terms.items() if term.keepable}
    room = _ROOM * sum(term.nbytes for term in known.values())
    keep: set[str] = set()
    for name in sorted(known, key=lambda n: known[n].dense_nbytes / max(1, known[n].nbytes)):
        room -= known[name].dense_nbytes
        if room < 0:
            break
        keep.add(name)
    return keep


def _measured(term: Term, may_keep: bool) -> tuple[Tensor, Term]:
    """Squared norms as they are computed, and the term to be summed, in the fastest way."""
    ways = term.norm_kernels()
    if not may_keep and (len(ways) == 1 or not term.records):
        return next(iter(ways.values()))(), term
    kernels: dict[str, Callable[[], tuple[Tensor, Term]]] = {
        kernel: partial(_not_kept, run, term) for kernel, run in ways.items()
    }
    if may_keep:
        kernels = {"keep": partial(_kept, term), **kernels}
    if not term.records:
        return next(iter(kernels.values()))()
    ones = torch.ones(term.records, dtype=term.dtype, device=term.device)
    return KERNELS.run(
        _key(term, may_keep), kernels, finish=lambda found: found[1].weighted_sum(ones)
    )


def _key(term: Term, may_keep: bool) -> Key:
    return ("norms", *term.key, may_keep)


def _not_kept(norms: Callable[[], Tensor], term: Term) -> tuple[Tensor, Term]:
    return norms(), term


def _kept(term: Term) -> tuple[Tensor, Term]:
    values, squares = term.kept()
    return squares, Dense(values)


def _guarded(term: Term, squares: Tensor, held: Term) -> tuple[Tensor, Term]:
    """The squared norms with their rounding added; cancelled records are computed again exactly.

    Kept gradients are the ones released, so only their distance from the truth matters. Gradients
    that are computed again for the sum may round differently, and every time in the same direction.
    """
    kept = isinstance(held, Dense)
    slack = term.slack() if kept else term.sum_slack()
    if slack is None:
        return squares, held
    norms = squares.sqrt()
    cancelled = slack > (_CANCELLED if kept else _RELEASED) * norms
    if bool(cancelled.any()):
        index = (cancelled & torch.isfinite(slack) & (slack > 0)).nonzero()[:, 0]
        exact = term.select(index).double() if held is not term or not kept else None
        if exact is not None and len(index):
            norms[index] = exact.streamed_square_norms().sqrt()
            slack = slack.index_fill(0, index, 0)
            rows = exact.dense(0, len(index)).to(term.dtype)
            if isinstance(held, Dense):
                held.values[index] = rows
            else:
                held = Patched(held, index, Dense(rows))
    return norms.add_(slack).square_(), held


def _recompute_tiny(squares: dict[str, Tensor], terms: Mapping[str, Term]) -> Tensor:
    """In float64 where squares may have vanished in float32: only normalising notices.

    Returns the squared norms over all parameters, ``[B]``.
    """
    total = torch.stack(list(squares.values())).sum(0)
    tiny = total < _TINY**2
    if bool(tiny.any()):
        index = tiny.nonzero()[:, 0]
        for name, term in terms.items():
            exact = term.select(index).double()
            if exact is not None:
                squares[name][index] = exact.streamed_square_norms()
        total = torch.stack(list(squares.values())).sum(0)
    return total
