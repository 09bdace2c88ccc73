"""Weight norm: ``w = g v / |v|`` by ordinary operations.

Torch's fused one has no rule for ``vmap``, and its second derivative is wrong (torch 2.13; a test
compares it with finite differences).
"""

from __future__ import annotations

import torch
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.tape import Tape


@handles(torch._weight_norm, rewrites=True, in_loop=True)
def weight_norm(tape: Tape, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """The function that both kinds of ``torch.nn.utils`` weight norm call."""
    across = [axis for axis in range(v.dim()) if dim == -1 or axis != dim % v.dim()]
    made: Tensor = v * (g / torch.linalg.vector_norm(v, dim=across, keepdim=dim != -1))
    return made
