"""Per-record Hessian-vector products ``H_i v_i``, for exact bias-aware minimisation.

Every record gets its own copy of each parameter (a stride-0 view), so the products of all records
come from one differentiation of the per-record gradients: forward over reverse where torch supports
it for the model's operations, reverse over reverse elsewhere. This builds ``[B, *shape]`` for every
parameter, so call it on chunks of a batch. Attention runs with its mathematical kernel, the only
one that can be differentiated twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from plumbline.gradients.capture_history import history_of
from plumbline.gradients.capturing import examined
from plumbline.gradients.model_parts import parts_of
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.gradients.random_state import RandomState
from plumbline.gradients.substitution import substituted
from plumbline.gradients.tape import Tape, Weight
from plumbline.gradients.terms import Dense

Mode = Literal["auto", "forward", "reverse"]


def hvp(
    model: nn.Module,
    losses: Callable[[], Tensor],
    vectors: PerSampleGradients | Mapping[str, Tensor],
    *,
    records: int | None = None,
    mode: Mode = "auto",
) -> PerSampleGradients:
    """The Hessian of each record's own loss times the record's own vector.

    Args:
        model: The model; its trainable parameters are differentiated.
        losses: Runs the model on a batch and returns one loss per record, ``[B]``.
        vectors: Per-record vectors ``[B, *shape]`` by parameter name (or the gradients of the same
            records), or one vector ``[*shape]`` for all. Missing parameters count as zero.
        records: The number of records, if known.
        mode: ``"forward"`` over reverse, ``"reverse"`` over reverse, or ``"auto"``: forward, and
            reverse where torch does not support it.

    Returns:
        ``H_i v_i`` as dense per-record gradients, to be combined with others.
    """
    if isinstance(vectors, PerSampleGradients):
        records = vectors.records if records is None else records
        vectors = vectors.materialise()
    if mode != "auto":
        return _products(model, losses, vectors, records, forward=mode == "forward")
    start = RandomState(model.parameters())
    try:
        return _products(model, losses, vectors, records, forward=True)
    except (NotImplementedError, RuntimeError):
        start.restore()
        return _products(model, losses, vectors, records, forward=False)


def _products(
    model: nn.Module,
    losses: Callable[[], Tensor],
    vectors: Mapping[str, Tensor],
    records: int | None,
    *,
    forward: bool,
) -> PerSampleGradients:
    parts, history = parts_of(model), history_of(model)
    unknown = set(vectors) - set(parts.parameters)
    if unknown:
        raise KeyError(f"The vectors name {sorted(unknown)[0]!r}, not a trainable parameter.")
    tape = Tape(records, history.memory, checked=False, dense=True)
    tape.constants = parts.constants
    weights = {
        name: Weight(tape, name, parameter.detach()) for name, parameter in parts.parameters.items()
    }
    if forward:
        _load_forward_rules()
        for name, vector in vectors.items():
            weights[name].tangent = vector
    with (
        forward_ad.dual_level(),
        history.counting(model, tape),
        substituted(parts, weights),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
    ):
        values = losses()
        count = examined(values, tape.expected)
        met = {name: weight.own for name, weight in weights.items() if weight.own is not None}
        first = torch.autograd.grad(
            values.sum(), list(met.values()), create_graph=not forward, allow_unused=True
        )
        if forward:
            second = tuple(None if one is None else _parts(one)[1] for one in first)
        else:
            second = _differentiated(first, met, vectors)
        products = dict(zip(met, second, strict=True))
        terms = {}
        for name, parameter in parts.parameters.items():
            product = products.get(name)
            if product is None:
                product = parameter.detach().new_zeros(()).expand(count, *parameter.shape)
            terms[name] = Dense(product.detach())
        detached = _parts(values)[0].detach()
    return PerSampleGradients(terms, count, detached)


def _parts(dual: Tensor) -> tuple[Tensor, Tensor | None]:
    """The value and the tangent of a tensor from forward-mode differentiation."""
    value, tangent = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
    return value, tangent


def _differentiated(
    gradients: tuple[Tensor | None, ...], met: Mapping[str, Tensor], vectors: Mapping[str, Tensor]
) -> tuple[Tensor | None, ...]:
    """The derivative of ``sum_i <g_i, v_i>`` with respect to each record's own parameters."""
    along = [
        (gradient * vectors[name]).sum()
        for name, gradient in zip(met, gradients, strict=True)
        if name in vectors and gradient is not None and gradient.requires_grad
    ]
    if not along:
        return (None,) * len(gradients)
    return torch.autograd.grad(torch.stack(along).sum(), list(met.values()), allow_unused=True)


def _load_forward_rules() -> None:
    """Loads torch's forward-mode rules now: torch warns about itself when it does so lazily."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        forward_ad._maybe_load_decompositions()  # type: ignore[no-untyped-call]
