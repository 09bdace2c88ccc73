"""Everything without a layer file: raw parameters, custom modules, weights made from weights.

A function of parameters only (a slice, a standardised weight, a learned query through a linear
layer) gives another weight, whose gradients are pulled back through it afterwards. A function that
combines parameters and records runs under ``torch.vmap`` with each record's own copy of the
parameter (a stride-0 view, no memory), and autograd gives the per-record gradients. Where vmap does
not work, a loop over the records does, with one warning that names the parameter.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from plumbline.gradients.errors import CaptureError, UnsupportedModelError
from plumbline.gradients.layers import ANYTHING, handles
from plumbline.gradients.tape import Tape, Weight, quiet_vmap
from plumbline.gradients.tracked import Tracked
from plumbline.record_random import own_generators

_LOOPED: set[str] = set()


@handles(ANYTHING)
def general(
    tape: Tape, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """``func`` of parameters and records, or of parameters only."""
    overwritten = _in_place(func)
    if overwritten is not None and tape.weight(args[0]) is not None:
        return general(tape, overwritten, args, kwargs)
    leaves, spec = tree_flatten((tuple(args), kwargs))
    weights = {place: leaf._weight for place, leaf in enumerate(leaves) if type(leaf) is Tracked}
    records = [place for place, leaf in enumerate(leaves) if tape.has_records(leaf)]
    if overwritten is not None:
        # The derivative needs a copy of the values that are overwritten here.
        leaves[0] = args[0].clone()
    call = _Call(overwritten or func, leaves, spec)
    result = _meet(tape, call, weights, records) if records else _make(tape, call, weights)
    if overwritten is None:
        return result
    if records and 0 not in records:
        raise UnsupportedModelError(
            f"The parameter '{next(iter(weights.values())).name}' and a record are written into a "
            "tensor that all records share. Make a new tensor instead (y = y + x, torch.cat, "
            "torch.stack), or one of the record's own (torch.zeros_like(x))."
        )
    return args[0].copy_(result)


class _Call:
    """A function and its arguments, to call again with some of them replaced."""

    def __init__(self, func: Callable[..., Any], leaves: list[Any], spec: Any) -> None:
        self.func, self.leaves, self.spec = func, leaves, spec

    def __call__(self, replaced: dict[int, Any]) -> Any:
        leaves = [replaced.get(place, leaf) for place, leaf in enumerate(self.leaves)]
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)


def _make(tape: Tape, call: _Call, weights: dict[int, Weight]) -> Any:
    """A function of parameters only, which gives another weight."""
    roots = tuple(dict.fromkeys(root for weight in weights.values() for root in weight.roots))
    with torch.enable_grad():
        result = call({place: weight.graph for place, weight in weights.items()})
        results, spec = tree_flatten(result)
        owns: list[Any] = [None] * len(results)
        differentiable = [isinstance(part, Tensor) and part.requires_grad for part in results]
        if any(differentiable) and any(
            tape.dense or weight.own is not None or weight.offset is not None
            for weight in weights.values()
        ):
            places = list(weights)

            def one(*values: Tensor) -> Any:
                parts, _ = tree_flatten(call(dict(zip(places, values, strict=True))))
                return tuple(part for part in parts if isinstance(part, Tensor))

            with quiet_vmap():
                own = iter(torch.vmap(one)(*(weight.per_record() for weight in weights.values())))
            owns = [next(own) if isinstance(part, Tensor) else None for part in results]
    narrow = any(weight.narrow for weight in weights.values())
    made = [
        Tracked.of(Weight.made(part, roots, own, narrow=narrow)) if is_weight else part
        for part, own, is_weight in zip(results, owns, differentiable, strict=True)
    ]
    return tree_unflatten(made, spec)


def _meet(tape: Tape, call: _Call, weights: dict[int, Weight], records: list[int]) -> Any:
    """Parameters and records together: each record with its own parameters."""
    values = {place: weight.per_record() for place, weight in weights.items()}
    values |= {place: call.leaves[place] for place in records}
    places = list(values)

    leaves: list[Any] = []
    spec: Any = None

    def one(*slices: Any) -> list[Tensor]:
        # vmap takes tensors only; anything else (None for attention weights that were not
        # requested) is the same for every record.
        nonlocal leaves, spec
        leaves, spec = tree_flatten(call(dict(zip(places, slices, strict=True))))
        return [part for part in leaves if isinstance(part, Tensor)]

    try:
        with quiet_vmap():
            result = torch.vmap(one, randomness="error")(*values.values())
    except CaptureError:
        raise
    except (RuntimeError, ValueError, NotImplementedError) as reason:
        if "random operation" in str(reason):
            raise UnsupportedModelError(
                f"{getattr(call.func, '__name__', call.func)} draws random numbers beside the "
                f"parameter '{next(iter(weights.values())).name}', which would depend on a "
                "record's place in the batch. Draw with torch.rand_like or torch.randn_like of "
                'the record\'s own tensor and combine the two, or use isolation="loop".'
            ) from reason
        result = _loop(tape, one, list(values.values()), next(iter(weights.values())), reason)
    for part in result:
        if part.is_floating_point():
            tape.computed(part)
    # Under autocast, vmap may return float32 for values that were computed with fewer bits.
    device = next(iter(values.values())).device.type
    tape.narrow = tape.narrow or torch.is_autocast_enabled(device)
    parts = iter(result)
    return tree_unflatten([next(parts) if isinstance(x, Tensor) else x for x in leaves], spec)


def _loop(
    tape: Tape,
    one: Callable[..., list[Tensor]],
    values: list[Tensor],
    weight: Weight,
    reason: Exception,
) -> list[Tensor]:
    why = str(reason).splitlines()[0]
    rows = []
    for record, seed in enumerate(tape.random.seeds().tolist()):
        with own_generators("operation", seed):
            rows.append(one(*(value[record] for value in values)))
    if weight.name not in _LOOPED:
        _LOOPED.add(weight.name)
        warnings.warn(
            f"The operation on the parameter '{weight.name}' does not work under torch.vmap "
            f"({why}); it runs record by record instead, which is slow.",
            stacklevel=2,
        )
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]


def _in_place(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """The ordinary form of an in-place function (``add_``, ``+=``), or None."""
    name = getattr(func, "__name__", "")
    if name.startswith("__i") and name.endswith("__") and hasattr(Tensor, f"__{name[3:]}"):
        ordinary = getattr(Tensor, f"__{name[3:]}")
        return ordinary if name not in {"__invert__", "__index__", "__int__"} else None
    if name.endswith("_") and not name.endswith("__") and hasattr(Tensor, name[:-1]):
        return getattr(Tensor, name[:-1])  # type: ignore[no-any-return]
    return None
