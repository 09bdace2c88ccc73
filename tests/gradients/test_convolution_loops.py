"""Weight gradients of convolutions in one compiled pass: against autograd, and record by record."""

import pytest
import torch
from torch import Tensor

from plumbline.gradients.convolution_loops import record_gradients

SIZE = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1)}


def batch(records: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and output gradients with numbers of channels that fill no vector."""
    generator = torch.Generator().manual_seed(records)
    inputs = torch.randn(records, 11, 9, 13, generator=generator)
    return inputs, torch.randn(records, 7, 9, 13, generator=generator)


def test_gradients_and_norms_are_those_of_autograd() -> None:
    inputs, back = batch()
    values, squares = record_gradients(inputs, back, **SIZE)
    for i in range(len(inputs)):
        weight = torch.zeros(7, 11, 3, 3, dtype=torch.float64, requires_grad=True)
        output = torch.conv2d(inputs[i : i + 1].double(), weight, padding=1)
        (true,) = torch.autograd.grad((output * back[i]).sum(), weight)
        torch.testing.assert_close(values[i].double(), true, rtol=1e-5, atol=1e-4)
        assert squares[0, i] == pytest.approx(values[i].double().square().sum().item(), rel=1e-12)
    assert squares[1].tolist() == pytest.approx(inputs.double().square().sum((1, 2, 3)).tolist())
    assert squares[2].tolist() == pytest.approx(back.double().square().sum((1, 2, 3)).tolist())


def test_other_records_and_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, back = batch()
    alone = [record_gradients(inputs[i : i + 1], back[i : i + 1], **SIZE)[0] for i in range(5)]
    inputs[2], back[3] = float("nan"), float("inf")
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        values, squares = record_gradients(inputs, back, **SIZE)
        for i in (0, 1, 4):
            assert torch.equal(values[i], alone[i][0])
        assert not bool(torch.isfinite(squares[:, 2:4]).all(0).any())
