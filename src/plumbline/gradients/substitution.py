"""Replaces a model's parameters with tracked tensors for the duration of a capture."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from plumbline.gradients.model_parts import ModelParts
from plumbline.gradients.tape import Weight
from plumbline.gradients.tracked import Tracked


@contextmanager
def substituted(parts: ModelParts, weights: Mapping[str, Weight]) -> Iterator[dict[str, Tracked]]:
    """Replaces the parameters with tracked tensors, and puts the parameters back at the end.

    Tied parameters are one weight. Anything that a module computed from tracked tensors and stored
    on itself (as old-style weight norm does) is restored too.
    """
    tracked = {name: Tracked.of(weight) for name, weight in weights.items()}
    changed: list[tuple[dict[str, Any], str, Any]] = []

    def put(holder: dict[str, Any], key: str, value: object) -> None:
        changed.append((holder, key, holder[key]))
        holder[key] = value

    try:
        stand_ins: dict[int, Tracked] = {}
        for holder, key, name in parts.holders:
            stand_ins[id(holder[key])] = tracked[name]
            put(holder, key, tracked[name])
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
        yield tracked
    finally:
        for holder, key, value in reversed(changed):
            holder[key] = value
