"""Per-record Hessian-vector products ``H_i v_i``, for exact bias-aware minimisation.

Every record gets its own copy of each parameter (a stride-0 view), so the products of all records
come from one differentiation of the per-record gradients: forward over reverse where torch supports
it for the model's operations, reverse over reverse elsewhere. This builds ``[B, *shape]`` for every
parameter, so call it on chunks of a batch. Attention runs with its mathematical kernel, the only
one that can be differentiated twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from plumbline.gradients import one_by_one
from plumbline.gradients.capturing import Isolation, Loss, own_loss, record_losses
from plumbline.gradients.errors import CaptureError
from plumbline.gradients.model_parts import parts_of
from plumbline.gradients.one_record import record_count
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.gradients.random_state import RandomState
from plumbline.gradients.substitution import substituted
from plumbline.gradients.tape import Tape, Weight
from plumbline.gradients.terms import Dense
from plumbline.gradients.tracked import Tracked
from plumbline.record_random import Draws

Mode = Literal["auto", "forward", "reverse"]


def hvp(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    vectors: PerSampleGradients | Mapping[str, Tensor],
    *,
    rows: int | None = None,
    random: Draws | None = None,
    isolation: Isolation = "vmap",
    mode: Mode = "auto",
) -> PerSampleGradients:
    """The Hessian of each record's own loss times the record's own vector.

    Args:
        model: The model; its trainable parameters are differentiated.
        loss: One loss per row, from the model and a batch. It is called with a batch of one record.
        batch: Tensors with one row per record, in any nesting.
        vectors: Per-record vectors ``[B, *shape]`` by parameter name (or the gradients of the same
            records), or one vector ``[*shape]`` for all. Missing parameters count as zero.
        rows: How many adjacent rows of the batch are one record.
        random: Each record's random numbers.
        isolation: How records are kept apart.
        mode: ``"forward"`` over reverse, ``"reverse"`` over reverse, or ``"auto"``: forward, and
            reverse where torch does not support it.

    Returns:
        ``H_i v_i`` as dense per-record gradients, to be combined with others.
    """
    if isinstance(vectors, PerSampleGradients):
        vectors = vectors.materialise()
    parts, records = parts_of(model), record_count(batch, rows)
    unknown = set(vectors) - set(parts.parameters)
    if unknown:
        raise KeyError(f"The vectors name {sorted(unknown)[0]!r}, not a trainable parameter.")
    if isolation == "loop":
        losses, products = one_by_one.gradients(
            parts, lambda record: own_loss(loss(model, record), rows or 1), batch,
            records, rows=rows, along=vectors, random=random,
        )  # fmt: skip
        return PerSampleGradients({k: Dense(v) for k, v in products.items()}, records, losses)

    def products_of(*, forward: bool) -> PerSampleGradients:
        own = None if random is None else random.fresh()
        tape = Tape(records, own, rows=rows, dense=True)
        return _products(model, loss, batch, vectors, tape, forward=forward)

    if mode != "auto":
        return products_of(forward=mode == "forward")
    start = RandomState(model.parameters())
    try:
        return products_of(forward=True)
    except CaptureError:
        raise
    except (NotImplementedError, RuntimeError):
        start.restore()
        return products_of(forward=False)


def _products(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    vectors: Mapping[str, Tensor],
    tape: Tape,
    *,
    forward: bool,
) -> PerSampleGradients:
    parts = parts_of(model)
    weights = {
        name: Weight(tape, name, parameter.detach()) for name, parameter in parts.parameters.items()
    }
    if forward:
        _load_forward_rules()
        for name, vector in vectors.items():
            weights[name].tangent = vector
    with (
        forward_ad.dual_level(),
        substituted(parts, {name: Tracked.of(weight) for name, weight in weights.items()}),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
    ):
        values = record_losses(model, loss, batch, tape)
        met = {name: weight.own for name, weight in weights.items() if weight.own is not None}
        first = tape.differentiated(values.sum(), list(met.values()), twice=not forward)
        if forward:
            second = tuple(None if one is None else _parts(one)[1] for one in first)
        else:
            second = _differentiated(tape, first, met, vectors)
        products = dict(zip(met, second, strict=True))
        terms = {}
        for name, parameter in parts.parameters.items():
            product = products.get(name)
            if product is None:
                product = parameter.detach().new_zeros(()).expand(tape.records, *parameter.shape)
            terms[name] = Dense(product.detach())
        detached = _parts(values)[0].detach()
    tape.release()
    return PerSampleGradients(terms, tape.records, detached)


def _parts(dual: Tensor) -> tuple[Tensor, Tensor | None]:
    """The value and the tangent of a tensor from forward-mode differentiation."""
    value, tangent = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
    return value, tangent


def _differentiated(
    tape: Tape,
    gradients: tuple[Tensor | None, ...],
    met: Mapping[str, Tensor],
    vectors: Mapping[str, Tensor],
) -> tuple[Tensor | None, ...]:
    """The derivative of ``sum_i <g_i, v_i>`` with respect to each record's own parameters."""
    along = [
        (gradient * vectors[name]).sum()
        for name, gradient in zip(met, gradients, strict=True)
        if name in vectors and gradient is not None and gradient.requires_grad
    ]
    if not along:
        return (None,) * len(gradients)
    return tape.differentiated(torch.stack(along).sum(), list(met.values()))


def _load_forward_rules() -> None:
    """Loads torch's forward-mode rules now: torch warns about itself when it does so lazily."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        forward_ad._maybe_load_decompositions()  # type: ignore[no-untyped-call]
