"""Replaces a model's parameters with other tensors for the duration of a capture."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from plumbline.gradients.model_parts import ModelParts


@contextmanager
def substituted(parts: ModelParts, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Replaces the parameters with other tensors, and puts the parameters back at the end.

    Tied parameters are one tensor. Anything that a module computed from them and stored
    on itself (as old-style weight norm does) is restored too.
    """
    changed: list[tuple[dict[str, Any], str, Any]] = []

    def put(holder: dict[str, Any], key: str, value: object) -> None:
        changed.append((holder, key, holder[key]))
        holder[key] = value

    try:
        stand_ins: dict[int, Tensor] = {}
        for holder, key, name in parts.holders:
            stand_ins[id(holder[key])] = tensors[name]
            put(holder, key, tensors[name])
        for recurrent in parts.recurrent:
            flat = [stand_ins.get(id(weight), weight) for weight in recurrent["_flat_weights"]]
            put(recurrent, "_flat_weights", flat)
            # Otherwise the module would see a change, and keep references to the stand-ins.
            refs = [None if weight is None else weakref.ref(weight) for weight in flat]
            put(recurrent, "_flat_weight_refs", refs)
        for attributes in parts.hooked:
            for key, value in list(attributes.items()):
                if isinstance(value, Tensor):
                    put(attributes, key, value)
        yield
    finally:
        for holder, key, value in reversed(changed):
            holder[key] = value
