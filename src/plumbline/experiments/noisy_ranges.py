"""Which bins of a noisy histogram seem to hold numbers; nothing here looks at a row.

Numbers that are spread over many bins may pass the noise in none of them, and still do together. So
windows of several bins are looked at: a window of w bins has noise of sqrt(w) times that of one.
The windows that noise alone would hardly reach hold numbers, the plainest first and none twice;
and so do bins beside them that stand out a little, as in the edges of an image (hysteresis).
"""

from __future__ import annotations

import math

import torch
from scipy import ndimage, special
from torch import Tensor

_WIDTHS = (1, 2, 3, 5, 8)
_SPURIOUS = 1e-3  # how likely a column holds a window that only noise has made
_BESIDE = 1.5  # standard deviations by which a bin beside others must stand out


def deviations(bins: int) -> float:
    """By how many standard deviations a window must stand out, of so many bins."""
    return -float(special.ndtri(_SPURIOUS / (bins * len(_WIDTHS))))


def held_bins(noisy: Tensor, std: float) -> Tensor:
    """The bins that seem to hold numbers, bool ``[bins]``.

    Args:
        noisy: How many numbers each bin holds, with noise, ``[bins]``.
        std: The standard deviation of the noise.
    """
    total = torch.cat([noisy.new_zeros(1), noisy.cumsum(0)])
    windows = []
    for width in _WIDTHS:
        apart = (total[width:] - total[:-width]) / (math.sqrt(width) * std)
        starts = torch.nonzero(apart > deviations(len(noisy))).flatten().tolist()
        windows += [(float(apart[start]), start, start + width) for start in starts]
    held = torch.zeros(len(noisy), dtype=torch.bool)
    for _, start, end in sorted(windows, reverse=True):
        if not held[start:end].any():
            held[start:end] = True
    beside = held | (noisy > _BESIDE * std)
    return torch.from_numpy(ndimage.binary_propagation(held.numpy(), mask=beside.numpy()))
