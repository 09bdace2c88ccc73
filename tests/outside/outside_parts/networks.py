"""A network."""

from __future__ import annotations

from torch import nn

from plumbline.models import model


@model
def small_net(*, features: int = 4, hidden: int = 8, classes: int = 2) -> nn.Module:
    """One hidden layer, registered as "small-net"."""
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


READY = small_net()


def not_a_network() -> int:
    """Builds nothing."""
    return 3
