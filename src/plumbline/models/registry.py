"""The papers' networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

Builder = Callable[..., nn.Module]
MODELS: dict[str, Builder] = {}


def model(name: str) -> Callable[[Builder], Builder]:
    """Registers a function that builds a network, under a name."""

    def register(builder: Builder) -> Builder:
        MODELS[name] = builder
        return builder

    return register


def accepts(name: str, option: str) -> bool:
    """Whether a network's builder has an option of that name."""
    return option in inspect.signature(MODELS[name]).parameters


def build(name: str, **options: Any) -> nn.Module:
    """A network by name, such as ``build("dpnas-cifar")``, with the options of its builder."""
    if name not in MODELS:
        raise ValueError(f"There is no network {name!r}; there are {', '.join(sorted(MODELS))}.")
    builder = MODELS[name]
    signature = inspect.signature(builder)
    try:
        signature.bind(**options)
    except TypeError as error:
        known = ", ".join(map(str, signature.parameters.values()))
        raise TypeError(f"The network {name!r}: {error}. Its options: {known}.") from None
    return builder(**options)
