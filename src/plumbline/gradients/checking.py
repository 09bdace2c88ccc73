"""Checks a capture against autograd's own gradient.

With random weights ``r_i``, autograd's gradient of ``sum_i r_i loss_i`` must equal the capture's
``sum(r)``. A difference is compared with the root of ``sum_i |r_i g_i|^2``, the size that a sum of
unrelated gradients would have: next to ``sum_i |r_i g_i|`` it would vanish in a large batch. A
parameter that is used where the capture does not see it shows as a gradient that reached the
parameter (or its stand-in) itself.

One record must not be able to stop a run. When the two differ, records whose gradients are mostly
float32 rounding (``unsteady``) are left out, and the rest is compared again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plumbline.gradients.rounding import ROUNDINGS, square_rows, unit_roundoff
from plumbline.gradients.summation import float64
from plumbline.gradients.tape import Tape, Weight
from plumbline.gradients.terms import Term


@dataclass(frozen=True)
class Difference:
    """Where a capture differs from autograd, and how."""

    parameter: str
    message: str


class AutogradCheck:
    """Random weights on the losses, and autograd's gradient of that weighted sum."""

    def __init__(self, losses: Tensor) -> None:
        # Drawn on the CPU, so that they do not depend on the device.
        generator = torch.Generator("cpu").manual_seed(len(losses))
        weights = 0.5 + torch.rand(len(losses), generator=generator, device="cpu")
        weights[torch.randperm(len(losses), generator=generator, device="cpu") % 2 == 1] *= -1
        self.weights = weights.to(losses)
        self._left_out = False
        self._reference: dict[str, Tensor | None] = {}
        self._escaped: list[str] = []

    def leave_out(self, rows: Tensor) -> None:
        """Leaves out the records ``rows`` (``[B]`` bool) from now on."""
        self.weights = self.weights.masked_fill(rows, 0)
        self._left_out = True

    @property
    def complete(self) -> bool:
        """Whether every parameter was compared for at least one record."""
        references = [value for value in self._reference.values() if value is not None]
        return bool(self.weights.any()) and all(
            bool(torch.isfinite(value).all()) for value in references
        )

    def differentiate(
        self,
        tape: Tape,
        losses: Tensor,
        weights: Mapping[str, Weight],
        parameters: Mapping[str, nn.Parameter],
        tracked: Mapping[str, Tensor],
    ) -> None:
        """Computes autograd's own gradient, while the graph exists."""
        names = list(weights)
        with torch._C.DisableTorchFunctionSubclass():
            inputs = [weights[name].value for name in names]
            inputs += [parameters[name] for name in names] + [tracked[name] for name in names]
            # Retained: gradients of computed weights are pulled back through the graph later.
            gradients = tape.differentiated((self.weights * losses).sum(), inputs, keep=True)
        count = len(names)
        self._reference = dict(zip(names, gradients[:count], strict=True))
        beside = zip(gradients[count : 2 * count], gradients[2 * count :], strict=True)
        self._escaped = [
            name
            for name, pair in zip(names, beside, strict=True)
            if any(gradient is not None for gradient in pair)
        ]

    def difference(self, terms: Mapping[str, Term], *, narrow: bool) -> Difference | None:
        """Where and how the capture differs from autograd; None when they agree.

        ``narrow``: some layer ran with fewer than 32 bits, and rounded accordingly.
        """
        if self._escaped:
            return Difference(
                self._escaped[0],
                f"The parameter '{self._escaped[0]}' is used where the capture does not see it (a "
                "custom autograd function, or a copy of the parameter kept outside the module). "
                "Write that operation with ordinary torch functions, or freeze the parameter.",
            )
        reference = {name: value for name, value in self._reference.items() if value is not None}
        sizes = {name: self._size(term) for name, term in terms.items()}
        scale = sum(size**2 for size in sizes.values()) ** 0.5
        used = self.weights.nonzero()[:, 0]
        for name, term in terms.items():
            ours = term.select(used).weighted_sum(self.weights[used])
            theirs = float64(reference.get(name, torch.zeros_like(ours)))
            apart = ours - theirs
            if self._left_out:
                # Zero times a non-finite input is NaN: autograd cannot leave out a record here.
                apart = apart.where(torch.isfinite(theirs), 0)
            error, size = float(apart.norm()), sizes[name]
            if not error <= tolerance(narrow) * (size + _SHARE * scale):
                return Difference(
                    name,
                    f"The captured gradient of the parameter '{name}' differs from autograd's own "
                    f"(by {error:.2e}, its size is {size:.2e}): something that the parameter does "
                    'escapes the capture. Use isolation="loop", and please report the model.',
                )
        return None

    def _size(self, term: Term) -> float:
        """The root of ``sum_i |r_i g_i|^2``, without records whose squares overflow."""
        squares = next(iter(term.norm_kernels().values()))().nan_to_num(0, 0)
        return float((squares * self.weights.double().square()).sum().sqrt())


def unsteady(terms: Mapping[str, Term], again: Mapping[str, Term], *, narrow: bool) -> Tensor:
    """The records that cannot be compared, ``[B]`` bool.

    ``again`` are the gradients of ``ANOTHER_SCALE`` times the losses. Whatever the model does, they
    must be that multiple of the first ones, so any difference is rounding; so is a fraction of the
    size at which a gradient enters a sum. A record is steady when its gradient's norm is finite and
    this rounding is small next to it.
    """
    noise, sizes = [], []
    for name, term in terms.items():
        apart = [
            square_rows(again[name].dense(a, b) / ANOTHER_SCALE - term.dense(a, b))
            for a, b in term.chunks()
        ]
        rounded = term.sizes().double() * (ROUNDINGS * unit_roundoff(term.dtype))
        noise.append(torch.cat(apart).sqrt() + rounded)
        sizes.append(term.streamed_square_norms())
    whole = torch.stack(sizes).sum(0).sqrt()
    allowed = torch.stack(sizes).sqrt() + _SHARE * whole
    little = torch.stack(noise) <= _STEADY * tolerance(narrow) * allowed
    return ~(little.all(0) & torch.isfinite(whole))


ANOTHER_SCALE = 1.4142135
"""Not a power of two: float32 would round the same way."""

_STEADY = 0.3
"""The fraction of the tolerance that a record's own rounding may use."""

_SHARE = 1e-2
"""The fraction of the whole gradient that a parameter's small gradient is compared with."""


def tolerance(narrow: bool) -> float:
    """How far apart two evaluations of the same gradient may be."""
    return 5e-2 if narrow else 1e-3
