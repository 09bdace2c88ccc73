"""Networks by name or reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar, overload

from torch import nn

from plumbline.registry import Registry, UnknownPart, check_options, options_of

Builder = Callable[..., nn.Module]
Own = TypeVar("Own", bound=Builder)

MODELS: Registry[Builder] = Registry("network")


@overload
def model(builder: Own, /) -> Own: ...
@overload
def model(name: str, /) -> Callable[[Own], Own]: ...
def model(builder: Own | str, /) -> Own | Callable[[Own], Own]:
    """Registers a function that builds a network, under its own name or another.

    ``@model`` above ``def small_net(...)`` registers "small-net".
    """

    def register(own: Own) -> Own:
        name = builder if isinstance(builder, str) else own.__name__.replace("_", "-")
        MODELS.add(name, own)
        return own

    return register if isinstance(builder, str) else register(builder)


def accepts(reference: str, option: str) -> bool:
    """Whether a network's builder has an option of that name."""
    return option in options_of(_builder(reference))


def build(reference: str, **options: Any) -> nn.Module:
    """A network by name or reference, with the options of its builder.

    Args:
        reference: A registered name, such as "dpnas-cifar"; or ``"package.module:attribute"`` of a
            function that builds a network, of a class, or of a network, which is copied.
        options: What the function or class is called with.
    """
    builder = _builder(reference)
    check_options(f"The network {reference!r}", builder, options)
    built = builder(**options)
    if not isinstance(built, nn.Module):
        raise UnknownPart(
            f"The network {reference!r} cannot be used: it builds {built!r}, which is not a "
            "torch.nn.Module."
        )
    return built


def _builder(reference: str) -> Builder:
    found = MODELS.find(reference)
    if isinstance(found, nn.Module):
        return lambda: copy.deepcopy(found)
    if not callable(found):
        raise UnknownPart(
            f"The network {reference!r} cannot be used: it is of type {type(found).__name__}. Name "
            "a function that builds a torch.nn.Module, a class, or a network."
        )
    builder: Builder = found
    return builder
