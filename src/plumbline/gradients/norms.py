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
    squares: dict[str, Tensor] = {}
    waiting: dict[str, Term] = {}
    for name, term in terms.items():
        squares[name], terms[name] = _measured(term, name in keep)
        if terms[name] is term:
            waiting[name] = term
        else:  # at once, which frees the term's memory
            _guard(squares, {name: term}, terms)
    _guard(squares, waiting, terms)
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


def _guard(squares: dict[str, Tensor], terms: Mapping[str, Term], held: dict[str, Term]) -> None:
    """Adds their rounding to the squared norms; cancelled records are computed again exactly.

    Kept gradients are the ones released, so only their distance from the truth matters. Gradients
    that are computed again for the sum may round differently, and every time in the same direction.

    Args:
        squares: The squared norms as they were computed, by parameter; replaced.
        terms: What some of them are norms of: these are guarded.
        held: What is to be summed; replaced where it is computed again.
    """
    bounds: dict[str, tuple[Tensor, float]] = {}
    for name, term in terms.items():
        kept = isinstance(held[name], Dense)
        slack = term.slack() if kept else term.sum_slack()
        if slack is not None:
            bounds[name] = slack, _CANCELLED if kept else _RELEASED
    if not bounds:
        return
    # All parameters at once: there may be hundreds, each with one number a record.
    slacks = torch.stack([slack for slack, _ in bounds.values()])
    norms = torch.stack([squares[name] for name in bounds]).sqrt_()
    most = norms.new_tensor([most for _, most in bounds.values()])[:, None]
    cancelled = slacks > most * norms
    if bool(cancelled.any()):
        uncertain = cancelled & torch.isfinite(slacks) & (slacks > 0)
        for place, name in enumerate(bounds):
            if bool(cancelled[place].any()):
                index = uncertain[place].nonzero()[:, 0]
                held[name] = _exact(terms[name], held[name], index, norms[place], slacks[place])
    squares.update(zip(bounds, norms.add_(slacks).square_(), strict=True))


def _exact(term: Term, held: Term, index: Tensor, norms: Tensor, slack: Tensor) -> Term:
    """Computes some records again in float64: their norms, and what is released of them."""
    if not len(index) or (held is term and isinstance(held, Dense)):
        return held
    exact = term.select(index).double()
    if exact is None:
        return held
    norms[index] = exact.streamed_square_norms().sqrt()
    slack[index] = 0
    rows = exact.dense(0, len(index)).to(term.dtype)
    if not isinstance(held, Dense):
        return Patched(held, index, Dense(rows))
    held.values[index] = rows
    return held


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
