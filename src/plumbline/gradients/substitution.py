"""Tracked tensors in the place of a model's parameters, for the length of a capture."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from plumbline.gradients.model_parts import Anatomy
from plumbline.gradients.tape import Weight
from plumbline.gradients.tracked import Tracked


@contextmanager
def substituted(anatomy: Anatomy, weights: Mapping[str, Weight]) -> Iterator[dict[str, Tracked]]:
    """Puts tracked tensors in the place of the parameters, and the parameters back at the end.

    Tied parameters are one weight. What a module computed from tracked tensors and stored on itself
    (old-style weight norm does) is put back too.
    """
    tracked = {name: Tracked.of(weight) for name, weight in weights.items()}
    changed: list[tuple[dict[str, Any], str, Any]] = []

    def put(holder: dict[str, Any], key: str, value: object) -> None:
        changed.append((holder, key, holder[key]))
        holder[key] = value

    try:
        stand_ins: dict[int, Tracked] = {}
        for holder, key, name in anatomy.holders:
            stand_ins[id(holder[key])] = tracked[name]
            put(holder, key, tracked[name])
        for recurrent in anatomy.recurrent:
            flat = [stand_ins.get(id(weight), weight) for weight in recurrent["_flat_weights"]]
            put(recurrent, "_flat_weights", flat)
            # Else the module would see a change, and keep references to the stand-ins.
            refs = [None if weight is None else weakref.ref(weight) for weight in flat]
            put(recurrent, "_flat_weight_refs", refs)
        for attributes in anatomy.hooked:
            for key, value in list(attributes.items()):
                if isinstance(value, Tensor):
                    put(attributes, key, value)
        yield tracked
    finally:
        for holder, key, value in reversed(changed):
            holder[key] = value
