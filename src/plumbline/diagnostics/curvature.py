"""The Hessian of the loss through its products with vectors: spectrum, trace, density.

From Sharpness-Aware Training.

Products are reverse-over-reverse, with the gradient's graph kept: one more backward pass each.
Attention runs with its mathematical kernel, the only one that can be differentiated twice. Lanczos
re-orthogonalises fully, so that its Ritz values do not repeat. Results are exact for a Lanczos run
as long as the number of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from plumbline.checks import check_count
from plumbline.results import Number, Undefined

Values = np.ndarray[tuple[int], np.dtype[np.float64]]

_NOT_FINITE = "a product with the Hessian is not finite"


class Operator(Protocol):
    """A symmetric linear map on flat vectors."""

    @property
    def size(self) -> int:
        """The dimension, d."""

    def __call__(self, vector: Tensor) -> Tensor:
        """The product with ``vector``, ``[d]``."""


class Hessian:
    """The Hessian of a model's mean loss on fixed records, as a map on flat vectors ``[d]``.

    Args:
        model: The model; its trainable parameters are differentiated, in their order.
        losses: Runs the model and returns one loss per record, ``[B]``. Several such functions are
            chunks of one set of records; each keeps its graph, which takes memory.
    """

    def __init__(
        self, model: nn.Module, losses: Callable[[], Tensor] | Sequence[Callable[[], Tensor]]
    ) -> None:
        chunks = [losses] if callable(losses) else list(losses)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("The model has no trainable parameters, and so no Hessian.")
        self._graphs: list[tuple[Tensor, ...]] = []
        self._sum = [torch.zeros_like(p) for p in self._parameters]
        total, self.records = 0.0, 0
        for chunk in chunks:
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                values = chunk()
                gradient = torch.autograd.grad(
                    values.sum(), self._parameters, create_graph=True, materialize_grads=True
                )
            self._graphs.append(gradient)
            self.records += len(values)
            total += float(values.detach().double().sum())
            for own, part in zip(self._sum, gradient, strict=True):
                own += part.detach()
        self.loss: Number = Undefined("the batch has no records")
        if self.records:
            self.loss = total / self.records

    @property
    def size(self) -> int:
        """The number of trainable parameters, d."""
        return sum(p.numel() for p in self._parameters)

    @property
    def gradient(self) -> Tensor:
        """The mean gradient, flat, ``[d]``."""
        return _flat(self._sum) / max(1, self.records)

    def __call__(self, vector: Tensor) -> Tensor:
        """The Hessian of the mean loss times ``vector``, ``[d]``."""
        like = self._parameters[0]
        pieces = torch.split(vector.to(like), [p.numel() for p in self._parameters])
        shaped = [piece.view_as(p) for piece, p in zip(pieces, self._parameters, strict=True)]
        total = torch.zeros_like(vector)
        for gradient in self._graphs:
            reached = [(g, v) for g, v in zip(gradient, shaped, strict=True) if g.requires_grad]
            if not reached:
                continue  # a loss that is linear in every parameter
            products = torch.autograd.grad(
                [g for g, _ in reached],
                self._parameters,
                grad_outputs=[v for _, v in reached],
                retain_graph=True,
                materialize_grads=True,
            )
            total += _flat(products).to(total)
        return total.div_(max(1, self.records))


@dataclass(frozen=True)
class Spectrum:
    """The ends of a spectrum.

    Attributes:
        largest: The largest eigenvalues found, falling; one that is repeated is found once.
        smallest: The smallest eigenvalue found.
        ratio: ``lambda_max / lambda_5``.
    """

    largest: list[float]
    smallest: float
    ratio: Number


def spectrum(
    operator: Operator, generator: torch.Generator, *, count: int = 5, steps: int = 40
) -> Spectrum | Undefined:
    """The largest eigenvalues by Lanczos (Ritz values, which approach them from within)."""
    found = _ritz(operator, generator, steps)
    if isinstance(found, Undefined):
        return found
    falling: list[float] = found[0].tolist()[::-1]
    ratio: Number = Undefined("fewer than five eigenvalues were found")
    if len(falling) > 4:
        ratio = Undefined("the fifth largest eigenvalue is not positive")
        if falling[4] > 0:
            ratio = falling[0] / falling[4]
    return Spectrum(falling[:count], falling[-1], ratio)


@dataclass(frozen=True)
class Trace:
    """An estimate of the trace, and the standard error of the estimate."""

    value: float
    standard_error: Number


def trace(
    operator: Operator, generator: torch.Generator, *, probes: int = 100
) -> Trace | Undefined:
    """Hutchinson's estimate of the trace, with random signs (Gradient Misalignment, App. B.3)."""
    check_count("probes", probes)
    if (nothing := _nothing(operator)) is not None:
        return nothing
    found = []
    for _ in range(probes):
        signs = torch.randint(0, 2, (operator.size,), generator=generator).double() * 2 - 1
        found.append(float(torch.dot(signs, operator(signs).double().cpu())))
        if not math.isfinite(found[-1]):
            return Undefined(_NOT_FINITE)
    error: Number = Undefined("one probe has no spread")
    if probes > 1:
        error = float(np.std(found, ddof=1)) / math.sqrt(probes)
    return Trace(math.fsum(found) / probes, error)


@dataclass(frozen=True)
class Density:
    """The distribution of the eigenvalues: atoms with weights that add up to one.

    Attributes:
        values: Ritz values, rising.
        weights: Their weights.
    """

    values: list[float]
    weights: list[float]

    def curve(self, points: int = 400) -> tuple[list[float], list[float]]:
        """The density on a grid, each atom a Gaussian a hundredth of the reach wide."""
        values, weights = np.array(self.values), np.array(self.weights)
        reach = max(float(values.max() - values.min()), 1e-12)
        width = reach / 100
        grid = np.linspace(values.min() - 0.05 * reach, values.max() + 0.05 * reach, points)
        bells = np.exp(-0.5 * ((grid[:, None] - values) / width) ** 2)
        heights = (bells @ weights) / (width * math.sqrt(2 * math.pi))
        return grid.tolist(), heights.tolist()


def density(
    operator: Operator, generator: torch.Generator, *, steps: int = 40
) -> Density | Undefined:
    """The spectral density by stochastic Lanczos quadrature (Sharpness-Aware Training, Fig. 8)."""
    found = _ritz(operator, generator, steps)
    if isinstance(found, Undefined):
        return found
    values, weights = found
    return Density(values.tolist(), weights.tolist())


def _ritz(
    operator: Operator, generator: torch.Generator, steps: int
) -> tuple[Values, Values] | Undefined:
    """Rising Ritz values of a Lanczos run from a random vector, and their quadrature weights."""
    check_count("steps", steps)
    if (nothing := _nothing(operator)) is not None:
        return nothing
    steps = min(steps, operator.size)
    basis = [_unit(operator.size, generator)]
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(steps):
        image = operator(basis[-1]).double().cpu()
        if not bool(torch.isfinite(image).all()):
            return Undefined(_NOT_FINITE)
        diagonal.append(float(torch.dot(image, basis[-1])))
        held = torch.stack(basis)
        for _ in range(2):  # twice is enough (Parlett)
            image = image - held.T @ (held @ image)
        size = float(image.norm())
        if step + 1 == steps or size <= 1e-10 * max(1e-300, max(map(abs, diagonal))):
            break
        beside.append(size)
        basis.append(image / size)
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
    return values, vectors[0] ** 2


def _nothing(operator: Operator) -> Undefined | None:
    empty = isinstance(operator, Hessian) and operator.records == 0
    return Undefined("the batch has no records") if empty else None


def _unit(size: int, generator: torch.Generator) -> Tensor:
    vector = torch.randn(size, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(vector, dim=0)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])
