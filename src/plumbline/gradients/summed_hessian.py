"""``sum_i H_i v_i`` when every parameter belongs to a linear layer, without any ``[B, *shape]``.

A linear layer with one position per record has ``g_i = d_i a_i^T``: a_i is its input, and d_i the
gradient of its output. With both in the graph, ``<g_i, v> = d_i^T v a_i`` and ``|g_i|^2 = |d_i|^2
|a_i|^2`` are cheap, and for ``v_i = sum_k s_ki v_k + c_i g_i`` the sum is the gradient of
``sum_i (sum_k s_ki <g_i, v_k> + c_i |g_i|^2 / 2)``: a forward pass, and a backward pass that is
differentiated once more. For networks with other parameters, use ``hvp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_AGREES = 1e-4
"""How far a gradient may be from autograd's by rounding, relative to the sum of record norms."""

Shared = tuple[Tensor, Mapping[str, Tensor]]
"""A vector ``[*shape]`` by parameter name, and its weight for each record, ``[B]``."""


def only_linear(parameters: Mapping[str, Tensor], losses: Callable[[], Tensor]) -> bool:
    """Whether ``summed_hvp`` works for a network, found by trying it on a few records.

    Each parameter must be used once, by ``F.linear`` with inputs ``[B, n]``; the resulting
    gradients are compared with autograd's, so that no other use of a parameter can escape.
    """
    try:
        with torch.enable_grad():
            layers, values = _passed(parameters, losses)
            expected = torch.autograd.grad(
                values.sum(), list(parameters.values()), retain_graph=True, allow_unused=True
            )
            of_name = dict(zip(parameters, expected, strict=True))
            if not all(layer.agrees(of_name) for layer in layers):
                return False
            _second(parameters, layers, [], torch.ones_like(values))
    except (_OtherUse, NotImplementedError, RuntimeError):
        return False
    return True


def summed_hvp(
    parameters: Mapping[str, Tensor],
    losses: Callable[[], Tensor],
    shared: Sequence[Shared],
    own: Tensor,
) -> dict[str, Tensor] | None:
    """``sum_i H_i (sum_k s_ki v_k + own_i g_i)`` by parameter name.

    None when the network behaves differently for these records than it did for ``only_linear``.

    Args:
        parameters: The network's trainable parameters by name; ``only_linear`` must hold.
        losses: Runs the network on a batch and returns one loss per record, ``[B]``.
        shared: The vectors ``v_k`` shared by all records, with their ``s_k``.
        own: The weight of each record's own gradient, ``[B]``.
    """
    try:
        with torch.enable_grad():
            layers, _ = _passed(parameters, losses)
            return _second(parameters, layers, shared, own)
    except _OtherUse:
        return None


class _OtherUse(Exception):
    """A parameter is used by something other than one linear layer with one position per record."""


@dataclass(eq=False)
class _Layer:
    """One call of ``F.linear`` with inputs ``[B, n]``; ``back [B, m]`` is its output's gradient.

    ``weight`` and ``bias`` are the parameters' names, or None if there is nothing to differentiate.
    """

    inputs: Tensor
    output: Tensor
    weight: str | None
    bias: str | None
    version: int
    back: Tensor | None = None

    def agrees(self, expected: Mapping[str, Tensor | None]) -> bool:
        """Whether its parameters' gradients agree with autograd's."""
        if self.back is None:
            return all(name is None or expected[name] is None for name in (self.weight, self.bias))
        back, inputs = self.back.detach(), self.inputs.detach()
        pairs = []
        if self.weight is not None:
            size = (back.norm(dim=1) * inputs.norm(dim=1)).sum()
            pairs.append((back.T @ inputs, expected[self.weight], size))
        if self.bias is not None:
            pairs.append((back.sum(0), expected[self.bias], back.norm(dim=1).sum()))
        return all(
            other is not None and bool((found - other).norm() <= _AGREES * size)
            for found, other, size in pairs
        )

    def along(self, shared: Sequence[Shared], own: Tensor) -> Tensor | None:
        """Its part of ``sum_i (sum_k s_ki <g_i, v_k> + own_i |g_i|^2 / 2)``."""
        if self.back is None:
            return None
        squares = self.inputs.new_zeros(len(own))
        if self.weight is not None:
            squares = squares + self.inputs.square().sum(1)
        if self.bias is not None:
            squares = squares + 1
        by_record = own * self.back.square().sum(1) * squares / 2
        for scale, vector in shared:
            if self.weight is not None:
                moved = self.inputs @ vector[self.weight].T
                by_record = by_record + scale * (self.back * moved).sum(1)
            if self.bias is not None:
                by_record = by_record + scale * (self.back @ vector[self.bias])
        return by_record.sum()


class _Watching(TorchFunctionMode):
    """Collects the linear layers that a network runs through."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._unmet = set(parameters)
        self.layers: list[_Layer] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs a function; refuses any but ``F.linear`` that differentiates a parameter."""
        kwargs = kwargs or {}
        met = any(id(leaf) in self._names for leaf in tree_leaves((tuple(args), kwargs)))
        if func is F.dropout:
            given = {"p": 0.5, "training": True, **dict(zip(("", "p", "training"), args)), **kwargs}  # noqa: B905
            if given["p"] and given["training"]:
                raise _OtherUse  # its masks would not be those that a capture gives each record
        if met and func is F.linear:
            return self._linear(*args, **kwargs)
        result = func(*args, **kwargs)
        # Functions that only ask about a parameter, such as its device, have no derivative.
        if met and any(isinstance(r, Tensor) and r.requires_grad for r in tree_leaves(result)):
            raise _OtherUse
        return result

    def check(self, values: Tensor) -> None:
        """Refuses what can only be seen after the network has run."""
        records = len(values) if values.dim() == 1 else -1
        for layer in self.layers:
            if len(layer.inputs) != records or layer.inputs._version != layer.version:
                raise _OtherUse
        if self._unmet:
            raise _OtherUse

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        names = self._names.get(id(weight)), None if bias is None else self._names.get(id(bias))
        for name in names:
            if name is not None:
                if name not in self._unmet:
                    raise _OtherUse
                self._unmet.discard(name)
        output = F.linear(input, weight, bias)
        if id(input) in self._names or input.dim() != 2 or output.dtype != weight.dtype:
            raise _OtherUse
        self.layers.append(_Layer(input, output, *names, input._version))
        return output.clone()  # the network may change it in place


def _passed(
    parameters: Mapping[str, Tensor], losses: Callable[[], Tensor]
) -> tuple[list[_Layer], Tensor]:
    """The layers that the records went through, each with its output's gradient; and the losses."""
    with _Watching(parameters) as watching:
        values = losses()
    watching.check(values)
    layers = watching.layers
    flowed = torch.autograd.grad(
        values.sum(), [layer.output for layer in layers], create_graph=True, allow_unused=True
    )
    for layer, back in zip(layers, flowed, strict=True):
        layer.back = back
    return layers, values


def _second(
    parameters: Mapping[str, Tensor],
    layers: Sequence[_Layer],
    shared: Sequence[Shared],
    own: Tensor,
) -> dict[str, Tensor]:
    parts = [part for layer in layers if (part := layer.along(shared, own)) is not None]
    slopes: Sequence[Tensor | None] = (None,) * len(parameters)
    if parts and any(part.requires_grad for part in parts):
        total = torch.stack(parts).sum()
        slopes = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if slope is None else slope
        for (name, parameter), slope in zip(parameters.items(), slopes, strict=True)
    }
