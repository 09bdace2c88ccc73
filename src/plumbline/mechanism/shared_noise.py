"""Gaussian noise in shares: several processes each add a part, and none knows the whole.

Each of N processes has a part of a value, a sum over records. It puts that part on one public grid,
of step `std / sqrt(N) * 2^-40`, adds noise of variance `std^2 / N` drawn on that grid from its own
stream, and sends the resulting integer. Adding integers is exact in any order, so the answer is the
same on every process, to the last bit, and is a function of one integer, the sum: the defence of
`noise`, unchanged.

Guarantee. The sum of N discrete Gaussians of standard deviation s grid steps is not quite a
discrete Gaussian; every probability is that of one with variance `N s^2` times a factor within
`exp(+-10 N exp(-pi^2 s^2))` (Kairouz, Liu and Steinke 2021, "The Distributed Discrete Gaussian
Mechanism", section 3). Here s is 2^40, so this exponent is below `10^(-10^24)`: far below the error
of each share's own sampler, a factor within 1 +- 2^-50 per value (`discrete_gaussian`), which
multiplies over the shares to 1 +- N 2^-50. The accounting is that of one process.
"""

import math
from collections.abc import Mapping

import torch

from plumbline.mechanism.discrete_gaussian import GRID_BITS
from plumbline.mechanism.noise import as_vector, in_place_of, rounding_sensitivity

__all__ = ["joined", "noisy_share", "shares_rounding_sensitivity"]

_ROOM = 61  # bits for the sum of all shares' values; noise and sign take the others


def noisy_share(
    value: Mapping[str, torch.Tensor], std: float, noise: torch.Tensor, shares: int
) -> torch.Tensor:
    """This process's part of a value plus its part of the noise, in half steps of the grid.

    Args:
        value: the tensors of one query by name, summed over this process's records only.
        std: the standard deviation of the noise of all shares together; above 0.
        noise: as many values as all the tensors together have, from `gaussian`.
        shares: the number of processes, N.

    Returns:
        `[numel]` int64, on the value's device. Only the sum over all processes may be used.

    Raises:
        ValueError: if a value is not finite, or is so large compared with the noise that 64-bit
            integers could not hold the sum.
    """
    total = as_vector(value, noise)
    total.div_(_step(std, shares)).round_()
    most = float(total.abs().max()) if total.numel() else 0.0
    if most >= 2.0**_ROOM / shares:
        raise ValueError(
            f"a value is {most * _step(std, shares) / std:.3g} times the noise's standard "
            "deviation, more than the integers that processes exchange can hold; noise so small "
            "protects nothing. Use a larger noise multiplier, or 0 for no noise"
        )
    # Grid points are whole steps and the noise is an odd number of half steps: both exact.
    drawn = (noise * 2.0 ** (GRID_BITS + 1)).to(torch.int64)
    return total.to(torch.int64).mul_(2).add_(drawn.to(total.device))


def joined(
    total: torch.Tensor, value: Mapping[str, torch.Tensor], std: float, shares: int
) -> dict[str, torch.Tensor]:
    """The answer, from the sum of all shares; with the names, shapes and types of `value`."""
    return in_place_of(value, total.to(torch.float64).mul_(_step(std, shares) / 2))


def shares_rounding_sensitivity(std: float, numel: int, shares: int) -> float:
    """Bounds what rounding adds to the L2 sensitivity, as `rounding_sensitivity` does for one.

    One more record can move every record of a batch to another process, so all their roundings
    count: N of them, on a grid that is finer by the root of N.
    """
    return shares * rounding_sensitivity(std / math.sqrt(shares), numel)


def _step(std: float, shares: int) -> float:
    return math.ldexp(std / math.sqrt(shares), -GRID_BITS)
