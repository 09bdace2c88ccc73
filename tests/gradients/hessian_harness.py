"""The oracle of Hessian products: one record at a time, differentiated twice in reverse."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from plumbline.gradients import hvp
from tests.gradients.harness import Inputs, _mapped, batch_size, called, record_losses


def assert_hessian_products_match_loop(
    model: nn.Module,
    inputs: Inputs,
    *,
    mode: Literal["auto", "forward", "reverse"] = "auto",
    batch_dim: int = 0,
    tolerance: float = 1e-10,
) -> None:
    """``H_i v_i`` of random vectors equals the loop's, parameter by parameter, in float64."""
    model = model.double()
    inputs = _mapped(inputs, lambda x: x.double() if x.is_floating_point() else x)
    records = batch_size(inputs, batch_dim)
    parameters = dict(model.named_parameters())
    vectors = {
        name: torch.randn(records, *p.shape, dtype=p.dtype, device=p.device)
        for name, p in parameters.items()
    }

    def losses(model: nn.Module, record: Inputs) -> Tensor:
        given = _mapped(record, lambda x: x.movedim(0, batch_dim))
        return record_losses(called(model, given), batch_dim)

    batch = _mapped(inputs, lambda x: x.movedim(batch_dim, 0))
    found = hvp(model, losses, batch, vectors, mode=mode).materialise()

    for i in range(records):
        record = _mapped(inputs, lambda x, i=i: x.narrow(batch_dim, i, 1))
        with sdpa_kernel(SDPBackend.MATH):
            loss = record_losses(called(model, record), batch_dim).sum()
            first = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
            along = sum(
                (gradient * vectors[name][i]).sum()
                for name, gradient in zip(parameters, first, strict=True)
            )
            second = torch.autograd.grad(along, list(parameters.values()))
        size = torch.stack([product.norm() for product in second]).norm()
        for name, product in zip(parameters, second, strict=True):
            error = (found[name][i] - product).norm()
            assert error <= tolerance * (product.norm() + 1e-3 * size), f"{name} of record {i}"
