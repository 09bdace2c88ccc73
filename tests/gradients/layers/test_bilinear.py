import pytest
import torch
from torch import nn

from tests.gradients.harness import PRECISIONS, Precision, assert_matches_loop


@PRECISIONS
@pytest.mark.parametrize("middle", [(), (3,), (2, 3)], ids=["flat", "sequence", "rank four"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_two_inputs(middle: tuple[int, ...], bias: bool, precision: Precision) -> None:
    inputs = (torch.randn(5, *middle, 3), torch.randn(5, *middle, 4))
    assert_matches_loop(nn.Bilinear(3, 4, 2, bias=bias), inputs, **precision)
